"""Whether a run's candidates are less often correct than they were, by more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

LEAST_FALL = 0.1
"""Fall of the share of correct attempts from which there is an alarm, where chance makes less."""

ERRORS = 3.0
"""Standard errors that such a fall exceeds."""

STEPS = 5
"""Steps whose shares are taken together."""

Share = tuple[float, int]
"""Of a step or of several: the share of correct attempts, and how many tasks were asked."""


@dataclass
class Correctness:
    """How many attempts of a run were correct in the last steps, and in the best steps in a row.

    Each step asks other tasks, and some are harder. The two shares are compared as two proportions of independent tasks, of
    which each is all right or all wrong: attempts at one task are alike, and this is the most that chance can make of them.
    """

    last: list[Share] = field(default_factory=list)
    """Of each of the last steps."""
    best: Share | None = None
    """Of the steps in a row that were best, less what luck may have added to few of them."""

    def alarms(self, correct: float | None, tasks: int) -> list[str]:
        """A sentence where far fewer attempts are correct in the last steps and this one than at best."""
        if correct is None or self.best is None:
            return []
        (now, asked), (before, asked_before) = together(self._with(correct, tasks)), self.best
        pooled = (now * asked + before * asked_before) / (asked + asked_before)
        error = math.sqrt(pooled * (1 - pooled) * (1 / asked + 1 / asked_before))
        if before - now < max(LEAST_FALL, ERRORS * error):
            return []
        return [f"{now:.0%} of the attempts of the last steps are correct, where {before:.0%} were"]

    def take(self, correct: float | None, tasks: int) -> None:
        """Take in a step, if any of its attempts could be judged."""
        if correct is not None:
            self.last = self._with(correct, tasks)
            self.best = max(filter(None, (self.best, together(self.last))), key=lower_bound)

    def _with(self, correct: float, tasks: int) -> list[Share]:
        return [*self.last, (correct, tasks)][-STEPS:]


def together(shares: Sequence[Share]) -> Share:
    """Of several steps."""
    tasks = sum(asked for _, asked in shares)
    return sum(share * asked for share, asked in shares) / tasks, tasks


def lower_bound(share: Share) -> float:
    """A share less the greatest standard error that it can have: of two that are equal, the one of more tasks says more."""
    correct, tasks = share
    return correct - 0.5 / math.sqrt(tasks)
