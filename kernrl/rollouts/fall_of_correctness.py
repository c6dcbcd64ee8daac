"""Whether a run's candidates are less often correct than they were, by more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

LEAST_FALL = 0.1
"""The smallest fall of the share of correct attempts that raises an alarm."""

ERRORS = 4.0
"""Standard errors that a fall exceeds. More than the usual three: the best of many windows is partly luck."""

WINDOW = 5
"""Steps in a row that are taken together; fewer at the start of a run."""

Share = tuple[float, int]
"""Of a step or of a window: the share of correct attempts, and the number of groups, each of which asked a task."""


@dataclass
class Correctness:
    """How many attempts of a run were correct in the last steps, and in the best window.

    Each step asks other tasks, and some are harder. Shares are compared as two proportions, in which each task counts as one
    draw, however many attempts it has: attempts at one task tend to agree. So the error is the largest that it can be.
    """

    last: list[Share] = field(default_factory=list)
    """Of each step of the last window."""
    best: Share | None = None
    """Of the best window, by `lower_bound`."""

    def alarms(self, correct: float | None, tasks: int) -> list[str]:
        """A sentence where far fewer attempts are correct than in the best window: in the last window, or in this step alone if
        its share is less than half.

        Args:
            correct: the share in this step, which has not been taken in; None where nothing could be judged.
            tasks: its groups with an attempt that was judged.
        """
        if correct is None or self.best is None:
            return []
        before, step, window = self.best[0], (correct, tasks), together(self._with(correct, tasks))
        if correct < before / 2 and fallen(self.best, step):
            now = correct
        elif fallen(self.best, window):
            now = window[0]
        else:
            return []
        return [f"{now:.0%} of the attempts are correct, where {before:.0%} of the best steps were"]

    def take(self, correct: float | None, tasks: int) -> None:
        """Take in a step, if any of its attempts could be judged."""
        if correct is not None:
            self.last = self._with(correct, tasks)
            self.best = max(filter(None, (self.best, together(self.last))), key=lower_bound)

    def _with(self, correct: float, tasks: int) -> list[Share]:
        return [*self.last, (correct, tasks)][-WINDOW:]


def fallen(before: Share, now: Share) -> bool:
    """Whether the second of two shares is less by more than chance makes of it."""
    tasks = before[1] + now[1]
    pooled = together([before, now])[0]
    error = math.sqrt(pooled * (1 - pooled) * tasks / (before[1] * now[1]))
    return before[0] - now[0] >= max(LEAST_FALL, ERRORS * error)


def together(shares: Sequence[Share]) -> Share:
    """The shares of several steps as one."""
    tasks = sum(asked for _, asked in shares)
    return sum(share * asked for share, asked in shares) / tasks, tasks


def lower_bound(share: Share) -> float:
    """A share less the largest standard error that it can have. The best window is chosen by it: a short one, at the start of
    a run, has to be better by more."""
    correct, tasks = share
    return correct - 0.5 / math.sqrt(tasks)
