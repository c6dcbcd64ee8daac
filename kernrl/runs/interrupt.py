"""Ctrl-C, or a scheduler's SIGTERM, as a wish: the step in hand is finished and saved before a run ends. A second one, later,
ends it at once."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

from kernrl.console import log
from kernrl.policy.ranks import Ranks

ONE_WISH_S = 1.0
"""Signals this close together are one: who ends a job signals process and group, and a launcher passes on what it got."""


class StopAfterStep:
    """While it is open, notes signals on any rank; the loop asks after every step, and saves before it ends."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._noted_s: float | None = None

    def __enter__(self) -> StopAfterStep:
        self._ours = threading.current_thread() is threading.main_thread()  # only there can signals be handled
        if self._ours:
            self._before = [signal.signal(number, self._note) for number in self.SIGNALS]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ours:
            for number, handler in zip(self.SIGNALS, self._before, strict=True):
                signal.signal(number, handler)

    def wanted(self) -> bool:
        """Whether any rank was told to stop; all of them ask together."""
        return self._ranks.any(self._noted_s is not None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if self._noted_s is None:
            self._noted_s = now_s
            log.print("Stopping after this step; once more, and it stops at once.")
        elif now_s - self._noted_s > ONE_WISH_S:
            raise KeyboardInterrupt
