"""Which tasks to ask next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

FLOOR = 0.1
"""Weight of a task that always or never succeeds, against 1 for one that succeeds half of the time."""

MEMORY = 0.5
"""Weight of the old pass rate when a new one comes in: the policy changes, so the past counts less and less."""


def curriculum_weight(pass_rate: float) -> float:
    """Sampling weight of a task: the variance of its outcome, 4 p (1 − p), over a floor that keeps every task in play."""
    return FLOOR + (1 - FLOOR) * 4 * pass_rate * (1 - pass_rate)


@dataclass
class TaskOrder:
    """Which tasks each step asks: a pure function of the seed, of how many were drawn before, and of the pass rates.

    Without a curriculum, every task once, then every task again in another order. With one, by `curriculum_weight`; a task
    not seen yet counts as one that succeeds half of the time.
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
        """The next task numbers. Within a draw of a curriculum none repeats, as long as there are enough."""
        first, self.drawn = self.drawn, self.drawn + size
        if not self.curriculum:
            return [self._shuffled(position) for position in range(first, self.drawn)]
        weights = np.array([curriculum_weight(self.pass_rates.get(task, 0.5)) for task in range(self.count)])
        random = np.random.Generator(np.random.PCG64([self.seed, first]))
        # Efraimidis and Spirakis 2006: in the order of u^(1/w), the largest first, is a weighted draw without repeats
        order = np.argsort(-(random.random(self.count) ** (1 / weights)), kind="stable").tolist()
        return [order[place % self.count] for place in range(size)]

    def record(self, rates: Mapping[int, float]) -> None:
        """Take in the pass rates seen in a step."""
        for task, rate in rates.items():
            old = self.pass_rates.get(task)
            self.pass_rates[task] = rate if old is None else MEMORY * old + (1 - MEMORY) * rate

    def _shuffled(self, position: int) -> int:
        epoch, place = divmod(position, self.count)
        order = np.arange(self.count)
        np.random.Generator(np.random.PCG64([self.seed, epoch])).shuffle(order)
        return int(order[place])
