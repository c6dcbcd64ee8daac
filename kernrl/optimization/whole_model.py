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

from kernrl.optimization.agreement import Agreement
from kernrl.optimization.budget import Budget
from kernrl.optimization.swap import put_back, restore
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

    Args:
        budget: When it ends, no further part is timed.
        clock: Seconds, after the GPU's work is done; by default the real ones.
    """
    if not any(report.swapped for report in reports):
        return "Nothing was swapped: the model is as it was."
    if not all(t.is_cuda for t in pytree.tree_leaves(given) if isinstance(t, Tensor)) and clock is None:
        return "The whole was not compared with the original: on a CPU every part runs as before."
    problem = _agree(Agreement(original, *given, precision, FRESH_INPUTS), made, reports)
    if problem:
        return f"Every part was taken back, and the copy still differs from the original: {problem}"
    if not any(report.swapped for report in reports):
        return "Every part was taken back: the model is as it was."
    with policy_flags(precision, autotune=True):
        speed = _speed_up(made, given, reports, budget, clock or _when_done)
    return f"The whole agrees with the original on {FRESH_INPUTS} fresh inputs. {speed}"


def _agree(agreement: Agreement, made: nn.Module, reports: Sequence[PartReport]) -> str:
    """Take back as few parts as make the whole agree: those that alone are the furthest off first. '' or what still differs."""
    if not (found := agreement.excess(made)).problem:
        return ""
    swapped = [report for report in reports if report.swapped]
    off = {}
    for report in swapped:
        with _without(made, [other for other in swapped if other is not report]):
            off[id(report)] = agreement.excess(made).ratio
    for report in sorted(swapped, key=lambda report: off[id(report)], reverse=True):
        _take_back(made, report, f"with it, the model differs from the original ({found.problem})")
        if not (found := agreement.excess(made)).problem:
            return ""
    return found.problem


def _speed_up(made: nn.Module, given: Given, reports: Sequence[PartReport], budget: Budget, clock: Callable[[], float]) -> str:
    """Take back the parts that make the whole slower; a sentence on its speed."""
    for report in reports:
        if report.swapped and budget.left_s > 0:
            found = _worth(made, given, [report], clock)
            if found.sure and found.log < 0:
                _take_back(
                    made, report, f"the whole takes {found.with_ms:.3g} ms with it and {found.without_ms:.3g} ms without"
                )
    swapped = [report for report in reports if report.swapped]
    if not swapped:
        return "Every part was taken back, since it is faster without."
    found = _worth(made, given, swapped, clock)
    sure = "" if found.sure else ", within the noise"
    return (
        f"With what was swapped it takes {found.with_ms:.3g} ms, launches from Python included, and {found.without_ms:.3g} ms "
        f"without: {math.exp(found.log):.2f}× the speed{sure}."
    )


def _worth(made: nn.Module, given: Given, reports: Sequence[PartReport], clock: Callable[[], float]) -> Worth:
    """The model with and without some parts, timed in turns."""
    arguments, named = given

    def ms() -> float:
        begun = clock()
        made(*arguments, **named)
        return 1e3 * (clock() - begun)

    turns = []
    with torch.no_grad():
        for _ in range(TURNS + 1):
            mine = ms()
            with _without(made, reports):
                turns.append((mine, ms()))
    turns = turns[1:]  # a first call may choose algorithms
    logs = [math.log(max(without_ms, 1e-6) / max(with_ms, 1e-6)) for with_ms, without_ms in turns]
    log = statistics.median(logs)
    agreeing = sum((one > 0) == (log > 0) for one in logs)
    return Worth(log, agreeing >= SURE_TURNS and abs(log) > SURELY, *map(statistics.median, zip(*turns, strict=True)))


def _when_done() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


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
