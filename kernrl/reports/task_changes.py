"""What changed from one evaluation to another, task by task: correct candidates, speeds, and the best kernel of each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from kernrl.console import counted
from kernrl.reports.results import Clock, clocks, group, speedup_x
from kernrl.reports.run_files import Run, Sample, read_row
from kernrl.reports.svg import signed, times
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.verdict import Rejection

MOST_DIFFS = 6
"""Tasks whose best kernels are shown side by side."""

MOST_LINES = 160
"""Lines of a difference that are shown."""


@dataclass(frozen=True, slots=True)
class TaskChange:
    """A task before and after."""

    task: str
    composition: str
    correct: tuple[str, str]
    """Such as `3 of 4`, before and after."""
    speed: tuple[str, str]
    """Geometric mean of the correct candidates' speedups, before and after; `–` where none was timed."""
    change: str
    """How much faster, or how many more are correct."""
    weight: float
    """How much changed, to sort by."""
    best: tuple[Sample | None, Sample | None]
    """The fastest correct candidate of each side."""


@dataclass(frozen=True, slots=True)
class KernelDiff:
    """The best kernel of a task before, and after."""

    change: TaskChange
    lines: Markup
    """Highlighted, escaped."""


def task_changes(before: Run, after: Run) -> list[TaskChange]:
    """Every task of both, the greatest change first. Speeds are compared only where both have one clock."""
    old, new = ({tasks[0].task: tasks for tasks in group(s for s in run.samples if s.judged)} for run in (before, after))
    clock, other = (clocks(s for samples in side.values() for s in samples)[0] for side in (old, new))
    clock = clock if clock == other else None
    changes = [_change(old[task], new[task], clock) for task in sorted(old.keys() & new.keys())]
    return sorted(changes, key=lambda c: -c.weight)


def kernel_diffs(before: Run, after: Run, changes: Sequence[TaskChange]) -> list[KernelDiff]:
    """The differences of the best kernels, for the tasks that changed most."""
    found: list[KernelDiff] = []
    for change in changes:
        old, new = change.best
        if old is None or new is None or len(found) == MOST_DIFFS:
            continue
        lines = _diff(_source(before, old), _source(after, new))
        if lines:
            found.append(KernelDiff(change, lines))
    return found


def _change(old: list[Sample], new: list[Sample], clock: Clock | None) -> TaskChange:
    speeds = [_geomean(side, clock) for side in (old, new)]
    shares = [fmean(s.verdict.correct for s in side) for side in (old, new)]
    ratio = speeds[1] / speeds[0] if speeds[0] and speeds[1] else None
    points = 100 * (shares[1] - shares[0])
    said = [f"{signed(points, '.0f')} points"] if points else []
    said += [times(ratio)] if ratio else []
    counts = [f"{sum(s.verdict.correct for s in side)} of {len(side)}" for side in (old, new)]
    return TaskChange(
        task=old[0].task,
        composition=" → ".join(old[0].composition),
        correct=(counts[0], counts[1]),
        speed=(times(speeds[0]) if speeds[0] else "–", times(speeds[1]) if speeds[1] else "–"),
        change=", ".join(said) or "–",
        weight=abs(points) / 100 + abs(math.log(ratio) if ratio else 0.0),
        best=(_best(old, clock), _best(new, clock)),
    )


def _geomean(samples: Sequence[Sample], clock: Clock | None) -> float | None:
    found = [x for s in samples if (x := speedup_x(s, clock, "eager")) is not None and x > 0]
    return math.exp(fmean(map(math.log, found))) if found else None


def _best(samples: Sequence[Sample], clock: Clock | None) -> Sample | None:
    """The fastest correct candidate; where nothing was timed, the shortest."""
    correct = [s for s in samples if s.verdict.correct]
    return min(correct, key=lambda s: (-(speedup_x(s, clock, "eager") or 0.0), s.tokens, s.id), default=None)


def _source(run: Run, sample: Sample) -> list[str]:
    text = str(read_row(run, sample).get("text") or "")
    parsed = parse_reply(text)
    return (text if isinstance(parsed, Rejection) else parsed.source).splitlines()


def _diff(old: list[str], new: list[str]) -> Markup:
    """A unified difference as HTML; nothing where both are equal."""
    lines = list(difflib.unified_diff(old, new, "before", "after", lineterm="", n=2))[2:]
    kinds = {"+": "added", "-": "removed", "@": "place"}
    shown = [
        Markup('<span class="{}">{}</span>').format(kinds.get(line[:1], "same"), line[:400]) for line in lines[:MOST_LINES]
    ]
    if len(lines) > MOST_LINES:
        shown.append(Markup('<span class="place">… {}</span>').format(counted(len(lines) - MOST_LINES, "more line")))
    return Markup("\n").join(shown)
