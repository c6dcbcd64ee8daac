"""The time that a search may take, from its first look at a module to its last file."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from kernrl.errors import UsageError

T = TypeVar("T")

TICK_S = 0.2
"""How often the clock is looked at while something is waited for."""

WRITE_SHARE = 0.03
"""Of a budget, kept for writing what was found and for ending the verifier's processes."""


class TooSmallBudgetError(UsageError):
    """The budget ended before there was anything to judge."""


class Budget:
    """Seconds on a clock, which runs from the moment that this is made.

    Args:
        stopping: Shared by budgets that are stopped together.
        clock: A monotonic clock in seconds.
        started: On that clock; now if not given.
    """

    def __init__(
        self,
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        started: float | None = None,
        stopping: threading.Event | None = None,
    ):
        self.seconds, self.clock = seconds, clock
        self._stopping = stopping or threading.Event()
        self.started = clock() if started is None else started

    @property
    def spent_s(self) -> float:
        """Seconds that are gone."""
        return self.clock() - self.started

    @property
    def left_s(self) -> float:
        """Seconds until its end; negative after it."""
        left = self.seconds - self.spent_s
        return min(left, 0.0) if self.stopped else left

    def stop(self) -> None:
        """Let nothing be left of it, nor of what it was taken from or was taken from it: as Ctrl-C, from any thread."""
        self._stopping.set()

    @property
    def stopped(self) -> bool:
        """Whether it was ended by `stop`."""
        return self._stopping.is_set()

    def part(self, share: float) -> Budget:
        """The first share of this one."""
        return Budget(share * self.seconds, clock=self.clock, started=self.started, stopping=self._stopping)

    def rest(self, parts: int = 1) -> Budget:
        """One of so many equal parts of what is left, beginning now."""
        return self.now(self.left_s / parts)

    def now(self, seconds: float) -> Budget:
        """So many seconds, beginning now, and stopped with this one."""
        return Budget(seconds, clock=self.clock, stopping=self._stopping)

    def within(self, what: str, work: Callable[[], T]) -> T:
        """The result of `work`, which nothing can cut short and which is abandoned when the budget ends.

        Args:
            what: Names the work, for the message.

        Raises:
            TooSmallBudgetError: It was not done in time. Its thread goes on, and what it gives is dropped.
        """
        ended: list[tuple[bool, Any]] = []

        def run() -> None:
            try:
                ended.append((True, work()))
            except BaseException as error:
                ended.append((False, error))

        thread = threading.Thread(target=run, name=what, daemon=True)
        thread.start()
        while thread.is_alive():
            if self.left_s <= 0:
                raise TooSmallBudgetError(f"the budget is too small: {what} takes longer than {self.seconds:.3g} s. Give more.")
            thread.join(min(TICK_S, max(self.left_s, 0.001)))
        done, found = ended[0]
        if not done:
            raise found
        return found
