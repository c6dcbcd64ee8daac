"""Which parts stay swapped: the whole model must agree with the original, and no part may make it slower as it is called."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernrl.optimization.models.agreement import Agreement
from kernrl.optimization.models.swap import put_back, restore
from kernrl.optimization.search.budget import Budget
from kernrl.verifier.base.precision import policy_flags

FRESH_INPUTS = 3
"""Inputs on which the whole model is compared with the original."""

TURNS, SURE_TURNS = 9, 8
"""Of so many turns, how many must agree that the model is faster with a part, or without."""

SURELY = 0.01
"""Least |log speedup| that counts, besides."""

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a forward, by place and by name."""


@dataclass
class PartReport:
    """What became of a part."""

    paths: tuple[str, ...]
    sentence: str
    swapped: bool
    speedups_x: dict[str, float] = field(default_factory=dict)
    """Baseline → speedup of the part."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What some parts do to the time of the whole."""

    log: float
    """Log speedup by them, the median over turns."""
    sure: bool
    with_ms: float
    without_ms: float


def settle(
    original: nn.Module,
    made: nn.Module,
    given: Given,
    precision: str,
    reports: Sequence[PartReport],
    budget: Budget,
    clock: Callable[[], float] | None = None,
) -> str:
    """Take back the parts without which the whole agrees or is faster, and note why; returns what was seen of the whole.

    Ctrl-C takes back what has not been compared.

    Args:
        budget: When it ends, no further part is timed by itself.
        clock: Seconds, after the GPU's work is done; by default the real ones.
    """
    if not _swapped(reports):
        return "Nothing was swapped: the model is as it was."
    tensors = [t for t in pytree.tree_leaves(given) if isinstance(t, Tensor)]
    if clock is None and not (tensors and all(t.is_cuda for t in tensors)):
        return "The whole was not compared with the original: on a CPU every part runs as before."
    agreed = False
    try:
        agreement = Agreement(original, *given, precision, FRESH_INPUTS)
        if problem := _agree(agreement, made, reports):
            return f"Every part was taken back, and the copy still differs from the original: {problem}"
        agreed = True
        with policy_flags(precision, autotune=True):
            timer = _Timer(made, given, clock or (lambda: _when_done(tensors[0].device)))
            if _speed_up(timer, reports, budget):
                _agree(agreement, made, reports)  # errors of those that went may have cancelled others
            speed = _speed(timer, reports)
    except KeyboardInterrupt:
        if not agreed:
            _take_all_back(made, reports, "the search was interrupted before the whole was compared with the original")
        return "The comparison of the whole with the original was interrupted."
    if not _swapped(reports):
        return "Every part was taken back: the model is as it was."
    return f"The whole agrees with the original on {FRESH_INPUTS} fresh inputs. {speed}"


def _swapped(reports: Sequence[PartReport]) -> list[PartReport]:
    return [report for report in reports if report.swapped]


def _agree(agreement: Agreement, made: nn.Module, reports: Sequence[PartReport]) -> str:
    """Take back parts until the whole agrees: those that alone are the furthest off first. '' or what still differs."""
    if not (found := agreement.excess(made)).problem:
        return ""
    swapped = _swapped(reports)
    off = {}
    for report in swapped:
        with _without(made, [other for other in swapped if other is not report]):
            off[id(report)] = agreement.excess(made).ratio
    for report in sorted(swapped, key=lambda report: off[id(report)], reverse=True):
        _take_back(made, report, f"with it, the model differs from the original ({found.problem})")
        if not (found := agreement.excess(made)).problem:
            return ""
    return found.problem


def _speed_up(timer: _Timer, reports: Sequence[PartReport], budget: Budget) -> bool:
    """Take back the parts that make the whole slower; whether there were any."""
    slower = False
    for report in _swapped(reports):
        if budget.left_s <= 0:
            break
        found = timer.worth([report])
        if found.sure and found.log < 0:
            why = f"the whole takes {found.with_ms:.3g} ms with it and {found.without_ms:.3g} ms without"
            _take_back(timer.made, report, why)
            slower = True
    return slower


def _speed(timer: _Timer, reports: Sequence[PartReport]) -> str:
    """A sentence on the speed of the whole. Where all parts together make it slower, they are taken back."""
    if not (swapped := _swapped(reports)):
        return ""
    found = timer.worth(swapped)
    if found.sure and found.log < 0:
        why = f"the whole takes {found.with_ms:.3g} ms with all that were swapped and {found.without_ms:.3g} ms without"
        _take_all_back(timer.made, reports, why)
    sure = "" if found.sure else ", within the noise"
    return (
        f"With what was swapped it takes {found.with_ms:.3g} ms, launches from Python included, and {found.without_ms:.3g} ms "
        f"without: {math.exp(found.log):.2f}× the speed{sure}."
    )


@dataclass(frozen=True, slots=True)
class _Timer:
    """Times a model as it is called."""

    made: nn.Module
    given: Given
    clock: Callable[[], float]

    @torch.no_grad()
    def worth(self, reports: Sequence[PartReport]) -> Worth:
        """The model with and without some parts, in turns, of which every other begins without."""
        turns = []
        for turn in range(TURNS + 1):
            without_ms = self._ms_without(reports) if turn % 2 else 0.0
            with_ms = self._ms()
            turns.append((with_ms, without_ms or self._ms_without(reports)))
        turns = turns[1:]  # a first call may choose algorithms
        logs = [math.log(max(without_ms, 1e-6) / max(with_ms, 1e-6)) for with_ms, without_ms in turns]
        log = statistics.median(logs)
        agreeing = sum((one > 0) == (log > 0) for one in logs)
        return Worth(log, agreeing >= SURE_TURNS and abs(log) > SURELY, *map(statistics.median, zip(*turns, strict=True)))

    def _ms_without(self, reports: Sequence[PartReport]) -> float:
        with _without(self.made, reports):
            return self._ms()

    def _ms(self) -> float:
        arguments, named = pytree.tree_map_only(Tensor, torch.clone, self.given)  # a model may change them
        begun = self.clock()
        self.made(*arguments, **named)
        return 1e3 * (self.clock() - begun)


def _when_done(device: torch.device) -> float:
    torch.cuda.synchronize(device)
    return time.perf_counter()


def _take_all_back(made: nn.Module, reports: Sequence[PartReport], why: str) -> None:
    for report in _swapped(reports):
        _take_back(made, report, why)


def _take_back(made: nn.Module, report: PartReport, why: str) -> None:
    for path in report.paths:
        restore(made.get_submodule(path))
    report.swapped = False
    report.sentence += f" Taken back: {why}."


@contextmanager
def _without(made: nn.Module, reports: Sequence[PartReport]) -> Iterator[None]:
    """Within, these parts run their own forward."""
    modules = [made.get_submodule(path) for report in reports for path in report.paths]
    taken = [restore(module) for module in modules]
    try:
        yield
    finally:
        for module, forward in zip(modules, taken, strict=True):
            put_back(module, forward)
