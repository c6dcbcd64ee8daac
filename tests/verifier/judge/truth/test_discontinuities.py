"""Where an op jumps, a rounding decides: either side is right for an element that near, and for no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.one_product import made
from torch import Tensor

from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.judge.compare import Inputs, error_figures, excess, tolerances_for
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.inputs import TaskInputs
from kernrl.verifier.judge.truth.discontinuities import Jumps
from kernrl.verifier.judge.truth.reference_answers import Answer, ReferenceAnswers

SOURCE = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def forward(self, x):
        return {}

def get_inputs():
    return [torch.randn(16, 64)]

def get_init_inputs():
    return []
"""
THIRD = 0.5 / 3.0
"""Times 3, it is 0.5 but for a rounding."""
SHRUNK = SOURCE.format("F.hardshrink(x * 3.0, 0.5)")


def answered(code: str, precision: str = "fp32", change: dict[int, float] | None = None) -> tuple[torch.Tensor, Answer]:
    reference = drawn(code, precision, change)
    return reference.inputs.inputs[0], reference.answer()


def drawn(code: str, precision: str = "fp32", change: dict[int, float] | None = None) -> ReferenceAnswers:
    task = Task(id="t", pytorch_code=code, input_sets=(InputSet("full"),), precision=precision)
    reference = ReferenceAnswers(TaskInputs(task, task.input_sets[0], precision, "cpu"))
    reference.inputs.draw(Draw("full", "nominal", 3))
    x = reference.inputs.inputs[0]
    x.clamp_(-0.1, 0.1)  # nothing lies near the jump of itself
    for place, number in (change or {}).items():
        x.view(-1)[place] = number
    return reference


def exceeds(y: torch.Tensor, answer: Answer) -> bool:
    (bound,) = tolerances_for([answer.levels], 0)[0]
    return excess(error_figures(y, answer.truth[0], answer.levels[0]).tolist(), bound) > 1


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("landed", [0.0, 0.5])
def test_either_side_of_a_jump_is_right(precision: str, landed: float) -> None:
    x, answer = answered(SHRUNK, precision, {5: THIRD, 9: -THIRD})
    y = F.hardshrink(x * 3.0, 0.5)
    y.view(-1)[5], y.view(-1)[9] = landed, -landed
    assert not exceeds(y, answer)


def test_what_lies_elsewhere_has_one_answer() -> None:
    x, answer = answered(SHRUNK, change={5: THIRD, 9: THIRD * 1.001, 13: THIRD * 0.999})
    for place in (9, 13):
        y = F.hardshrink(x * 3.0, 0.5)
        y.view(-1)[place] = 0.5 - float(y.view(-1)[place])
        assert exceeds(y, answer)
    y = F.hardshrink(x * 3.0, 0.5)
    y.view(-1)[5] = 0.25  # between the sides by more than a rounding, and yet no further off than either
    assert not exceeds(y, answer)
    y.view(-1)[5] = 1.1
    assert exceeds(y, answer)


def test_a_sum_behind_a_jump_may_have_either() -> None:
    x, answer = answered(SOURCE.format("torch.where(x * 3.0 > 0.5, 7.0, x).sum(1)"), change={5: THIRD})
    y = torch.where(x * 3.0 > 0.5, 7.0, x)
    sums = []
    for landed in (7.0, THIRD):
        y[0, 5] = landed
        sums.append(y.sum(1))
        assert not exceeds(sums[-1], answer)
    wrong = sums[0].clone()
    wrong[1] += 7.0
    assert exceeds(wrong, answer)


def test_two_numbers_near_jumps_may_lie_on_different_sides() -> None:
    """On the same side, above or below, their product is 1."""
    code = SOURCE.format("torch.where(x * 3.0 > 0.5, 1.0, -1.0).view(-1, 2).prod(1)")
    reference = drawn(code, change={4: THIRD, 5: THIRD, 6: THIRD * 1.001, 7: THIRD * 1.001})
    answer = reference.answer()
    sided = replace(answer, levels=reference.with_other_sides(answer, Inputs.OWN))
    assert answer.jumps
    for place, right in ((2, True), (3, False)):
        y = answer.truth[0].float()
        y[place] = -y[place]
        assert exceeds(y, answer)
        assert exceeds(y, sided) is not right


def test_what_is_left_where_large_terms_cancel_lies_near_a_jump() -> None:
    """It is off by as much as its terms are, however small it is itself."""
    mistaken, lost = 0, 0
    for seed in range(300):
        reference = ReferenceAnswers(TaskInputs(made("torch.sign(x @ self.weight)"), InputSet("full"), "tf32", "cpu"))
        reference.inputs.draw(Draw("full", "nominal", seed))
        (level,) = reference.answer().levels
        torch.manual_seed(seed)
        (y,) = reference.rounded_run(None, Inputs.OWN, products="by lot")
        far = (y.double() - reference.answer().truth[0]).abs() > 1.0
        mistaken += int(far.sum())
        lost += int((far & (level.slack == 0.0)).sum()) if level.slack is not None else int(far.sum())
    assert mistaken > 20
    assert lost < mistaken / 10


def test_elements_behind_a_bound_say_nothing_of_how_far_rounding_moves_the_others() -> None:
    """Nearly all are clamped, and no rounding moves those."""
    code = SOURCE.format("F.hardshrink((x * 3.0).clamp(-1.0, 1.0), 0.5)")
    x, answer = answered(code, "tf32", dict.fromkeys(range(1000), 2.0) | {1009: THIRD * (1 + 1.5e-7)})
    y = F.hardshrink((x * 3.0).clamp(-1.0, 1.0), 0.5)
    y.view(-1)[1009] = 0.5 - float(y.view(-1)[1009])
    assert not exceeds(y, answer)


def test_a_zero_lies_on_one_side_for_good() -> None:
    """No rounding moves it, nor a small number across it: a mask of zeros is no jump."""
    x, answer = answered(SOURCE.format("(x > 0).float()"), change={5: 0.0, 7: 1e-9})
    assert answer.levels[0].slack is None
    y = (x > 0).float()
    y.view(-1)[5] = 1.0
    assert exceeds(y, answer)


def test_a_reference_without_jumps_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sides: list[float] = []
    moved = Jumps.moved
    monkeypatch.setattr(Jumps, "moved", lambda self, side: sides.append(side) or moved(self, side))
    answered(SOURCE.format("torch.relu(x) * 2"))
    answered(SHRUNK)  # nothing lies near
    assert not sides, "nor on either side of a jump"
    answered(SHRUNK, change={5: THIRD})
    assert sides == [1.0, -1.0]


PICKED = {
    "topk": ("x.topk(4).indices", lambda x: x.sort(descending=True, stable=True).indices[:, :4]),
    "topk of the least": ("x.topk(4, 1, False).indices", lambda x: 63 - x.flip(1).sort(stable=True).indices[:, :4]),
    "sort": ("x.sort(0).indices", lambda x: 15 - x.flip(0).sort(dim=0, stable=True).indices),
    "median": ("x.median(1).indices", lambda x: x.sort(stable=True).indices[:, 31]),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("called", "other"), PICKED.values(), ids=PICKED)
def test_any_of_equal_elements_may_be_picked(called: str, other: Callable[[Tensor], Tensor], precision: str) -> None:
    # clamped numbers are mostly equal
    x, answer = answered(SOURCE.format(called), precision)
    assert not exceeds(other(x), answer)
    assert exceeds(torch.zeros_like(answer.truth[0]) - 1000, answer)


def test_a_place_of_a_number_that_has_no_equal_is_the_right_one() -> None:
    distinct = dict(enumerate(torch.arange(1024.0).mul(0.37).sin().tolist()))
    x, answer = answered(SOURCE.format("x.topk(4).indices"), "fp32", distinct)
    right = x.topk(4).indices
    assert not exceeds(right, answer)
    wrong = right.clone()
    wrong[3, 2] = (wrong[3, 2] + 1) % 64
    assert exceeds(wrong, answer)


REPEATED = {
    "topk": ("x.topk(4).indices", 1),
    "topk down the columns": ("x.topk(4, 0).indices", 0),
    "sort, narrowed": ("x.sort(1).indices.int()", 1),
}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("called", "dim"), REPEATED.values(), ids=REPEATED)
def test_none_of_equal_elements_may_be_picked_twice(called: str, dim: int, precision: str) -> None:
    x, answer = answered(SOURCE.format(called), precision)
    right = answer.truth[0]
    assert not exceeds(right, answer)
    picked = x.gather(dim, right.long())
    # each element's place is that of the first that equals it: right numbers, but repeated
    first = (picked.unsqueeze(dim + 1) == picked.unsqueeze(dim)).int().argmax(dim + 1)
    assert (first != first.sort(dim).values).any() or first.unique().numel() < first.numel()
    assert exceeds(right.gather(dim, first), answer)


def test_places_of_rows_may_be_equal() -> None:
    """Each column's `topk` names a place once; the columns' may be the same."""
    _, answer = answered(SOURCE.format("x[:, :1].expand_as(x).topk(4, 0).indices"))
    assert not exceeds(answer.truth[0], answer)


def test_a_stable_sort_picks_the_first() -> None:
    x, answer = answered(SOURCE.format("(x * 0.0).sort(dim=1, stable=True).indices"))
    assert exceeds(torch.arange(63, -1, -1).expand_as(x), answer)
