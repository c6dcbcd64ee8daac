"""Curriculum: the order in which tasks are asked, and how often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kernrl.rollouts.collect import Attempt
from kernrl.rollouts.reward import UNKNOWN

FLOOR = 0.1
"""Weight of a task that always or never succeeds, against 1 for one that succeeds half of the time."""

MEMORY = 0.5
"""Weight of the old pass rate when a new one comes in: the policy changes, so old outcomes fade."""


def curriculum_weight(pass_rate: float) -> float:
    """Sampling weight of a task: the variance of its outcome, 4 p (1 − p), over a floor that keeps every task in play."""
    return FLOOR + (1 - FLOOR) * 4 * pass_rate * (1 - pass_rate)


@dataclass
class TaskOrder:
    """The tasks of each step: a pure function of the seed, of how many were drawn before, and of the pass rates.

    Without a curriculum every task comes once an epoch, in an order of the epoch's own. With one, tasks are drawn by
    `curriculum_weight`; a task not seen yet counts as one that succeeds half of the time.
    """

    count: int
    """Number of tasks."""
    seed: int
    curriculum: bool = False
    drawn: int = 0
    """Task numbers handed out so far."""
    pass_rates: dict[int, float] = field(default_factory=dict)
    """Task number → running pass rate."""

    def draw(self, size: int) -> list[int]:
        """The next task numbers. With a curriculum, none repeats within a draw as long as there are enough tasks."""
        first, self.drawn = self.drawn, self.drawn + size
        if not self.curriculum:
            return [self._shuffled(position) for position in range(first, self.drawn)]
        weights = np.array([curriculum_weight(self.pass_rates.get(task, 0.5)) for task in range(self.count)])
        random = np.random.Generator(np.random.PCG64([self.seed, first]))
        # Efraimidis and Spirakis 2006: in the order of u^(1/w), the largest first, is a weighted draw without repeats
        order = np.argsort(-(random.random(self.count) ** (1 / weights)), kind="stable").tolist()
        return [order[place % self.count] for place in range(size)]

    def record(self, rates: Mapping[int, float]) -> None:
        """Take in the pass rates of a step: task number → share of correct attempts."""
        for task, rate in rates.items():
            old = self.pass_rates.get(task)
            self.pass_rates[task] = rate if old is None else MEMORY * old + (1 - MEMORY) * rate

    def record_groups(self, tasks: Sequence[int], groups: Sequence[Sequence[Attempt]]) -> None:
        """Take in a step's attempts: `tasks[i]` is the number of the task of `groups[i]`."""
        found: dict[int, float] = {}
        for task, group in zip(tasks, groups, strict=True):
            judged = [a.verdict.correct for a in group if a.verdict.status not in UNKNOWN]
            if judged:
                found[task] = sum(judged) / len(judged)
        self.record(found)

    def _shuffled(self, position: int) -> int:
        epoch, place = divmod(position, self.count)
        order = np.arange(self.count)
        np.random.Generator(np.random.PCG64([self.seed, epoch])).shuffle(order)
        return int(order[place])
