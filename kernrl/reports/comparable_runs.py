"""What of several runs may be compared: evaluations on the tasks that they share, and apart from them the training runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernrl.console import counted
from kernrl.reports.results import compare, summarise
from kernrl.reports.run_files import Run, Sample

LAST_SHARE = 10
"""Of a training run's steps, the last tenth is what its figures describe."""

TRAINING = ("sft", "best-of-n", "reinforce", "reward-weighted")
"""Commands that train."""


@dataclass(frozen=True, slots=True)
class RunsByKind:
    """Runs by what they can be compared with; every run is in exactly one list."""

    compared: list[Run]
    """Evaluations that share tasks with the first of them, with the samples of the shared tasks alone."""
    training: list[Run]
    """Runs that trained: their tasks change with every step."""
    apart: list[Run]
    """Evaluations without a task in common with the first, and runs that sampled nothing."""
    tasks: int
    """Tasks that all of `compared` share."""

    left_out: int
    """Samples of `compared` that are of other tasks, which its figures leave out."""

    @property
    def heading(self) -> str:
        """What `compared` is."""
        many = len(self.compared) > 1
        return f"evaluation{'s' * many}, on {'the ' * many}{counted(self.tasks, 'task')}{' that they share' * many}"


def trains(run: Run) -> bool:
    """Whether the run trained a model: by its command or by what it wrote, as an evaluation has no steps and no losses."""
    return (
        run.stage in TRAINING
        or any(sample.step for sample in run.samples)
        or any("loss" in row or "reward" in row for row in run.metrics)
    )


def runs_by_kind(runs: Sequence[Run]) -> RunsByKind:
    """Divide runs into those that may stand in one table and those that may not."""
    training = [run for run in runs if trains(run)]
    asked = [run for run in runs if not trains(run)]
    first = next((tasks for run in asked if (tasks := _judged_tasks(run))), set())
    compared = [run for run in asked if first & _judged_tasks(run)]
    shared = set.intersection(*map(_judged_tasks, compared)) if compared else set()
    if not shared:  # each shares tasks with the first, but no task is in all of them
        compared, shared = compared[:1], first
    own = [replace(run, samples=[s for s in run.samples if s.task in shared]) for run in compared]
    left_out = sum(len(run.samples) - len(cut.samples) for run, cut in zip(compared, own, strict=True))
    names = {run.path for run in compared}
    return RunsByKind(own, training, [run for run in asked if run.path not in names], len(shared), left_out)


def comparisons(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What changed from the first evaluation to each later one, over the tasks of both."""
    asked = [run for run in runs if not trains(run) and run.samples]
    return [{"name": run.name, **compare(asked[0].samples, run.samples)} for run in asked[1:]]


def summarise_run(run: Run) -> dict[str, Any]:
    """The figures of a run: of its newest samples where it trained, of all where it only asked."""
    return summarise(newest(run.samples)[0])


def newest(samples: Sequence[Sample]) -> tuple[list[Sample], str]:
    """The samples of the last tenth of the steps, and words for which those are; all, and no words, without steps."""
    steps = sorted({s.step for s in samples})
    if len(steps) < 2:
        return list(samples), ""
    count = math.ceil(len(steps) / LAST_SHARE)
    chosen = set(steps[-count:])
    words = f"step {min(chosen)}" if count == 1 else f"steps {min(chosen)} to {max(chosen)}"
    return [s for s in samples if s.step in chosen], words


def _judged_tasks(run: Run) -> set[str]:
    return {sample.task for sample in run.samples if sample.judged}
