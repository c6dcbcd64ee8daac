"""References that raise on some numbers: what they do not take is found beforehand, and left out of the draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.base.devices import device_aimed_at
from kernrl.verifier.judge.domain import ANY, Domain, find_domain
from kernrl.verifier.judge.draws import Draw, schedule, spot_draws
from kernrl.verifier.judge.idle_ops import has_idle_op
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.judge_server import Judge
from kernrl.verifier.judge.regimes import NOMINAL, REGIMES
from kernrl.verifier.judge.task_lint import lint, objection
from kernrl.verifier.pool.task_facts import gather_facts

FINITE = frozenset(name for name, regime in REGIMES.items() if regime.finite)


def task(forward: str, inputs: str, module: str = "") -> Task:
    code = f"""
import torch
import torch.nn.functional as F
from torch import nn

ROWS = 6


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {module or "pass"}

    def forward(self, x, y):
        return {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""
    return Task("t", code)


PROBABILITIES = task("F.binary_cross_entropy(x, y, reduction='none')", "torch.rand(ROWS, 8), torch.rand(ROWS, 8)")
AFTER_SIGMOID = task(
    "F.binary_cross_entropy(self.layer(x).sigmoid(), y, reduction='none')",
    "torch.randn(ROWS, 8), torch.randint(0, 2, (ROWS, 8)).float()", "self.layer = nn.Linear(8, 8)",
)  # fmt: skip
TABLE = task("self.table((x * 10).long()) * y", "torch.rand(ROWS), torch.randn(ROWS, 8)", "self.table = nn.Embedding(10, 8)")
PLACES = task(
    "self.table(x[:, 0].long()) * x[:, 1:] + y",
    "torch.cat([torch.randint(0, 10, (ROWS, 1)).float(), torch.randn(ROWS, 8)], 1), torch.randn(ROWS, 8)",
    "self.table = nn.Embedding(10, 8)",
)
TOGETHER = task("torch.ones(40)[(x * y).abs().clamp(max=99).long()] * x", "torch.rand(ROWS, 8), torch.rand(ROWS, 8)")
LABELS = task("F.cross_entropy(x, y)", "torch.randn(ROWS, 8), torch.randint(0, 8, (ROWS,))")
SETS = (InputSet(FULL),)


@pytest.mark.parametrize(
    ("given", "domain"),
    [
        (PROBABILITIES, Domain((0, 1))),
        (AFTER_SIGMOID, Domain((), frozenset(("nonfinite",)))),
        (TABLE, Domain((0,))),
        (PLACES, Domain((0,))),
        (LABELS, ANY),
        (task("x.none", "torch.randn(2), torch.randn(2)"), ANY),
    ],
    ids=["probabilities", "after a sigmoid", "table", "places among floats", "labels", "never runs"],
)
def test_what_a_reference_does_not_take_is_found(given: Task, domain: Domain) -> None:
    assert find_domain(given, SETS, "fp32") == domain
    assert bool(domain.note()) == (domain != ANY)


def test_inputs_that_make_it_raise_together_are_all_held() -> None:
    assert find_domain(TOGETHER, SETS, "fp32").held == (0, 1)


def test_a_task_knows_its_domain_before_there_is_a_candidate() -> None:
    assert gather_facts(TABLE, "fp32", device_aimed_at("sm_90", None), on_gpu=False).domain == Domain((0,))
    assert "input 0" in Domain((0,)).note()
    assert "nonfinite" in Domain((), frozenset(("nonfinite",))).note()


def test_what_is_refused_is_not_drawn() -> None:
    sets = (InputSet("small"), InputSet("ragged"), InputSet(FULL))
    for refused in (frozenset(("nonfinite", "mixed")), frozenset(REGIMES)):
        draws = schedule(sets, 5, held=(1,), refused=refused)
        assert not {draw.regime for draw in draws} & refused
        assert {draw.input_set for draw in draws} == {"small", "ragged", FULL}
        assert {draw.held for draw in (*draws, *spot_draws(draws))} == {(1,)}


def test_held_inputs_stay_as_the_task_draws_them() -> None:
    inputs = TaskInputs(TABLE, InputSet(FULL), "fp32", "cpu")
    inputs.draw(Draw(FULL, NOMINAL, 3))
    own = [x.clone() for x in inputs.inputs]
    inputs.draw(Draw(FULL, "large", 3, held=(0,)))
    inputs.scale(64.0)
    assert torch.equal(inputs.inputs[0], own[0])
    assert inputs.inputs[1].abs().max() > 1000 * own[1].abs().max()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("given", [PROBABILITIES, AFTER_SIGMOID, PLACES], ids=["probabilities", "after a sigmoid", "places"])
def test_its_answers_tell_right_from_wrong(given: Task, precision: str) -> None:
    small = Task("t", given.pytorch_code, input_sets=(InputSet(FULL), InputSet("small", {"ROWS": 5})))
    assert objection(lint(small, precision, decisive=True)) == ""


def test_another_row_of_the_table_is_wrong() -> None:
    domain, inputs, judge = find_domain(PLACES, SETS, "fp32"), TaskInputs(PLACES, InputSet(FULL), "fp32", "cpu"), Judge("cpu")
    draws = schedule(SETS, 7, held=domain.held, refused=domain.refused)

    def worst(shift: int) -> float:
        outputs: list[list[Tensor]] = []
        for draw in draws:
            inputs.draw(draw)
            x, y = inputs.inputs
            row = (x[:, 0].long() + shift) % 10
            outputs.append([inputs.state["table.weight"][row] * x[:, 1:] + y])
        records = judge.compare(PLACES, "fp32", draws, range(len(draws)), outputs)
        return min(record["excess"] for record in records) if shift else max(record["excess"] for record in records)

    assert worst(0) <= 1
    assert worst(1) > 1


def test_no_idle_ops_are_looked_for_where_a_number_could_make_it_raise() -> None:
    inputs = TaskInputs(TABLE, InputSet(FULL), "fp32", "cpu")
    [first, *_] = schedule(SETS, 7, held=(0,))
    assert not has_idle_op(inputs, first)
