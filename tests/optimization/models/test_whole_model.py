"""Which parts stay swapped in a model. Time is a clock of the test's own: each forward says how long it takes."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from kernrl.optimization.models.agreement import disagreement
from kernrl.optimization.models.whole_model import PartReport, settle
from kernrl.optimization.search.budget import Budget

NAMES = ("first", "second", "third", "fourth")
X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Block(nn.Linear):
    clock: Clock

    def forward(self, input: Tensor) -> Tensor:
        self.clock.now += 0.010
        return super().forward(input).relu()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(Block, "clock", made, raising=False)
    return made


@pytest.fixture
def model(clock: Clock) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = nn.Sequential()
    for name in NAMES:
        blocks.add_module(name, Block(16, 16))
    return blocks


def swapped(
    model: nn.Sequential, clock: Clock, seconds: dict[str, float], wrong: Callable[[Tensor], Tensor], *off: str
) -> tuple[nn.Module, list[PartReport]]:
    """A copy with other forwards, which take so long; those of `off` are wrong."""
    made = copy.deepcopy(model).eval()
    for name, takes in seconds.items():
        block = made.get_submodule(name)

        def forward(x: Tensor, block: nn.Module = block, takes: float = takes, name: str = name) -> Tensor:
            clock.now += takes
            out = nn.Linear.forward(block, x).relu()  # pyright: ignore[reportArgumentType]
            return wrong(out) if name in off else out

        block.__dict__["forward"] = forward
    return made, [PartReport((name,), f"{name}: faster.", swapped=True) for name in seconds]


def settled(model: nn.Module, made: nn.Module, reports: list[PartReport], clock: Clock, seconds: float = 60.0) -> str:
    return settle(model, made, ((X,), {}), "fp32", reports, Budget(seconds, clock=clock), clock)


def those_swapped(made: nn.Module, reports: list[PartReport]) -> list[str]:
    found = [name for name in NAMES if "forward" in made.get_submodule(name).__dict__]
    assert found == [report.paths[0] for report in reports if report.swapped]
    return found


def test_what_is_right_and_faster_stays_and_the_speed_of_the_whole_is_told(model: nn.Sequential, clock: Clock) -> None:
    made, reports = swapped(model, clock, dict.fromkeys(NAMES, 0.005), torch.neg)
    said = settled(model, made, reports, clock)
    assert those_swapped(made, reports) == [*NAMES]
    assert said == (
        "The whole agrees with the original on 3 fresh inputs. With what was swapped it takes 20 ms, launches from Python "
        "included, and 40 ms without: 2.00× the speed."
    )


@pytest.mark.parametrize("wrong", [lambda y: 1.01 * y, lambda y: y * float("nan"), lambda y: y[:1].expand_as(y)])
@pytest.mark.parametrize("off", [["first"], ["third"], ["second", "fourth"]])
def test_only_what_makes_the_whole_differ_is_taken_back(
    model: nn.Sequential, clock: Clock, wrong: Callable[[Tensor], Tensor], off: list[str]
) -> None:
    made, reports = swapped(model, clock, dict.fromkeys(NAMES, 0.005), wrong, *off)
    said = settled(model, made, reports, clock)
    assert those_swapped(made, reports) == [name for name in NAMES if name not in off]
    assert "agrees with the original" in said
    for report in reports:
        assert ("Taken back: with it, the model differs from the original (input " in report.sentence) == (
            report.paths[0] in off
        )


def test_a_part_that_makes_the_whole_slower_is_taken_back(model: nn.Sequential, clock: Clock) -> None:
    made, reports = swapped(model, clock, {"first": 0.005, "second": 0.020, "third": 0.0101}, torch.neg)
    said = settled(model, made, reports, clock)
    assert those_swapped(made, reports) == ["first", "third"], "a difference of 0.3 % may be noise"
    assert reports[1].sentence.endswith("Taken back: the whole takes 45.1 ms with it and 35.1 ms without.")
    assert said.endswith("and 40 ms without: 1.14× the speed.")


def test_where_every_part_makes_it_slower_the_model_is_as_it_was(model: nn.Sequential, clock: Clock) -> None:
    made, reports = swapped(model, clock, {"first": 0.015, "fourth": 0.030}, torch.neg)
    assert settled(model, made, reports, clock) == "Every part was taken back: the model is as it was."
    assert those_swapped(made, reports) == []
    assert "Taken back: the whole takes 65 ms with it and 60 ms without." in reports[0].sentence


def test_parts_that_are_slower_only_together_are_all_taken_back(model: nn.Sequential, clock: Clock) -> None:
    made, reports = swapped(model, clock, dict.fromkeys(NAMES, 0.01025), torch.neg)  # 0.6 % of the whole each
    assert settled(model, made, reports, clock) == "Every part was taken back: the model is as it was."
    assert those_swapped(made, reports) == []
    assert "the whole takes 41 ms with all that were swapped and 40 ms without" in reports[0].sentence


def test_where_every_part_is_wrong_the_model_is_as_it_was(model: nn.Sequential, clock: Clock) -> None:
    made, reports = swapped(model, clock, dict.fromkeys(NAMES, 0.005), torch.neg, *NAMES)
    assert settled(model, made, reports, clock) == "Every part was taken back: the model is as it was."
    assert those_swapped(made, reports) == []


@pytest.mark.parametrize(("second_s", "stay"), [(0.005, False), (0.001, True)])
def test_when_the_budget_is_over_the_parts_are_timed_together_alone(
    model: nn.Sequential, clock: Clock, second_s: float, stay: bool
) -> None:
    made, reports = swapped(model, clock, {"first": 0.018, "second": second_s}, torch.neg)
    budget = Budget(1.0, clock=clock)
    clock.now += 2.0
    said = settle(model, made, ((X,), {}), "fp32", reports, budget, clock)
    assert those_swapped(made, reports) == (["first", "second"] if stay else [])
    assert ("1.03× the speed" in said) == stay


def test_an_interrupt_takes_back_what_was_not_compared(model: nn.Sequential, clock: Clock) -> None:
    def interrupted(x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    made, reports = swapped(model, clock, {"first": 0.005, "second": 0.005}, interrupted, "second")
    assert settled(model, made, reports, clock) == "The comparison of the whole with the original was interrupted."
    assert those_swapped(made, reports) == []


def test_an_input_that_is_changed_in_place_hides_no_mistake(clock: Clock) -> None:
    class Adds(nn.Module):
        def __init__(self, by: float):
            super().__init__()
            self.by, self.inner = by, nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.add_(self.by))

    before = X.clone()
    assert "is off by" in disagreement(Adds(1.0), Adds(3.0), (X,), "fp32", 2)
    assert disagreement(Adds(1.0), Adds(1.0), (X,), "fp32", 2) == ""
    assert torch.equal(X, before)


def test_what_is_not_finite_in_the_original_is_no_difference() -> None:
    masks, other = torch.nn.Threshold(0.0, float("-inf")), torch.nn.Threshold(0.1, float("-inf"))
    assert disagreement(masks, copy.deepcopy(masks), (X,), "fp32", 2) == ""
    assert "infinite or not a number elsewhere" in disagreement(masks, other, (X,), "fp32", 2)


def test_frozen_layers_of_the_original_stay_frozen(model: nn.Sequential) -> None:
    model.train()
    model.get_submodule("second").eval()
    disagreement(model, copy.deepcopy(model), (X,), "fp32", 1)
    assert [module.training for module in model] == [True, False, True, True]


def test_another_model_than_the_original_is_told(model: nn.Sequential, clock: Clock) -> None:
    made, reports = swapped(model, clock, {"first": 0.005}, torch.neg)
    with torch.no_grad():
        made.get_submodule("second").weight += 0.1  # pyright: ignore[reportOperatorIssue]
    said = settled(model, made, reports, clock)
    assert said.startswith("Every part was taken back, and the copy still differs from the original: input ")
