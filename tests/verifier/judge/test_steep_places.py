"""Where a rounding moves an element far, an honest program may be far off; and nothing else is excused by that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.one_product import made

from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.base.verdict import ErrorRecord
from kernrl.verifier.judge.compare import Inputs
from kernrl.verifier.judge.draws import Draw, schedule
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.judge_server import Judge
from kernrl.verifier.judge.regimes import HUGE, NOMINAL
from kernrl.verifier.judge.truth.exact import Products
from kernrl.verifier.judge.truth.reference_answers import ReferenceAnswers

CLIFF = "torch.sigmoid((x @ self.weight) * x.abs().sum(-1, keepdim=True))"
"""Of large inputs 0 or 1: a rounding decides where the product is near 0, which one element in some thousands is."""
SHARED = "torch.log_softmax((x @ self.weight).clamp(-0.5, 1.0), -1)"
"""One such element moves all of its row."""


def honest(task: Task, draws: list[Draw], seed: int, products: Products = "by lot") -> list[list[torch.Tensor]]:
    """The outputs of a program that computes as the reference does, and rounds in its own way."""
    inputs = TaskInputs(task, InputSet(FULL), "tf32", "cpu")
    reference, outputs = ReferenceAnswers(inputs), []
    for draw in draws:
        inputs.draw(draw)
        torch.manual_seed(seed)
        outputs.append([reference.rounded_run(None, Inputs.OWN, products=products)[0].float()])
    return outputs


def finite_draws(seed: int) -> list[Draw]:
    return [draw for draw in schedule([InputSet(FULL)], seed) if draw.finite]


def judged(task: Task, draws: list[Draw], outputs: list[list[torch.Tensor]], precision: str = "tf32") -> list[ErrorRecord]:
    return Judge("cpu").compare(task, precision, draws, range(len(draws)), outputs)


@pytest.mark.parametrize("result", [CLIFF, SHARED])
def test_no_honest_program_is_refused_for_an_element_at_a_cliff(result: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task, refused = made(result), {False: 0, True: 0}
    looked = ReferenceAnswers.with_steep_places
    for seed in range(60):
        draws = [draw for draw in finite_draws(seed) if draw.regime in (NOMINAL, "large", HUGE)]
        outputs = honest(task, draws, seed + 100)
        for looks in refused:
            unchanged = lambda self, answer, bounds, kind: answer.levels  # noqa: E731
            monkeypatch.setattr(ReferenceAnswers, "with_steep_places", looked if looks else unchanged)
            refused[looks] += sum(record["excess"] > 1 for record in judged(task, draws, outputs))
    assert refused[True] == 0
    assert refused[False] > 0


TIES = "torch.nn.functional.gelu(torch.log_softmax(x @ x.T, -1) / 3)"
"""Numbers far below zero are rounded to few different ones, and then rows of the product are nearly equal."""


def test_no_honest_program_is_refused_for_rounding_to_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    task = replace(made(TIES), input_sets=(InputSet(FULL), InputSet("small")))
    refused, rounded = {False: 0, True: 0}, ReferenceAnswers.rounded_run

    def cut(self: ReferenceAnswers, *given: Any, products: Products = "cut", amplified: float = 1.0) -> list[torch.Tensor]:
        return rounded(self, *given, products="cut" if products == "nearest" else products, amplified=amplified)

    for seed in range(12):
        draws = [draw for draw in schedule([InputSet("small")], seed) if draw.finite]
        outputs = honest(task, draws, seed + 100, "nearest")
        for looks in refused:
            monkeypatch.setattr(ReferenceAnswers, "rounded_run", rounded if looks else cut)
            refused[looks] += sum(record["excess"] > 1 for record in judged(task, draws, outputs))
        monkeypatch.undo()
    assert refused[True] == 0
    assert refused[False] > 0


def test_runs_are_asked_for_one_element_that_holds_the_rms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 512 elements, one is off by less than the largest may be, and by more than the RMS of all allows."""
    task, draws, asked = made(CLIFF), finite_draws(0)[:1], counted(monkeypatch)
    (outputs,) = honest(task, draws, 1)
    record: ErrorRecord = {"excess": 0.0}
    for share in range(1, 200):
        bad = outputs[0].clone()
        bad[3, 3] += share / 200 if bad[3, 3] < 0.5 else -share / 200
        (record,) = judged(task, draws, [[bad]])
        if record["excess"] > 1:
            break
    assert record["rms"] > record["tolerance_rms"]
    assert abs(record["got"] - record["expected"]) < record["tolerance_max"]
    assert asked


def test_a_mistake_elsewhere_is_as_wrong_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """One element of 512, where the result is flat, by a fifth."""
    task, draws, asked = made(CLIFF), finite_draws(3), counted(monkeypatch)
    outputs, refused = honest(task, draws, 5), 0
    for row in range(len(draws)):
        y = outputs[row][0].flatten()
        flat = int((y - 0.5).abs().argmax())
        y[flat] += 0.2 if y[flat] < 0.5 else -0.2
        (record,) = Judge("cpu").compare(task, "tf32", draws, [row], [[y.reshape(32, 16)]])
        with monkeypatch.context() as context:
            context.setattr(ReferenceAnswers, "with_steep_places", lambda self, answer, bounds, kind: answer.levels)
            (before,) = Judge("cpu").compare(task, "tf32", draws, [row], [[y.reshape(32, 16)]])
        assert (record["excess"] > 1) is (before["excess"] > 1), draws[row].regime
        refused += record["excess"] > 1
    assert refused >= len(asked) > len(draws) / 3  # elsewhere a modelled run has flipped an element, and anything goes


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    asked: list[int] = []
    looked = ReferenceAnswers.with_steep_places
    monkeypatch.setattr(ReferenceAnswers, "with_steep_places", lambda *given: asked.append(1) or looked(*given))
    return asked


@pytest.mark.parametrize(("wrong", "precision", "looks"), [(32, "tf32", True), (33, "tf32", False), (32, "bf16", False)])
def test_it_is_looked_for_where_few_elements_are_wrong(
    wrong: int, precision: str, looks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, draws = made(CLIFF), finite_draws(0)[:1]
    asked = counted(monkeypatch)
    inputs = TaskInputs(task, InputSet(FULL), precision, "cpu")
    inputs.draw(draws[0])
    (y,) = inputs.call()
    y = y.detach().clone()
    y.flatten()[:wrong] += 2.0
    (record,) = judged(task, draws, [[y]], precision)
    assert record["excess"] > 1
    assert bool(asked) is looks


def test_every_candidate_of_a_draw_is_held_against_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    task, draws, judge = made(CLIFF), finite_draws(0)[:1], Judge("cpu")
    asked = counted(monkeypatch)
    (outputs,) = honest(task, draws, 1)
    bad = [outputs[0].clone()]
    bad[0][0, 0] += 2.0
    found = [judge.compare(task, "tf32", draws, [0], [bad])[0]["excess"] for _ in range(2)]
    assert found[0] == found[1] > 1
    assert len(asked) == 1
