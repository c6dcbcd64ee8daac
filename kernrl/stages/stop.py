"""Ctrl-C, or a scheduler's SIGTERM, as a wish: the step in hand is finished and saved before a run ends. A second one ends it
at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from kernrl.console import log
from kernrl.policy.ranks import Ranks


class StopAfterStep:
    """While it is open, notes signals on any rank; the loop asks after every step, and saves before it ends."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, ranks: Ranks):
        self._ranks, self._noted = ranks, False

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
        return self._ranks.any(self._noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self._noted = True
        log.print("Stopping after this step; once more, and it stops at once.")
