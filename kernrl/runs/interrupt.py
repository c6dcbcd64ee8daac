"""Ctrl-C, a scheduler's SIGTERM or a closed terminal: a run finishes and saves its step before it ends.

A second, later signal ends it at once.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType

from kernrl.console import log
from kernrl.policy.ranks import Ranks
from kernrl.signals import INTERRUPTS, leave_closed_terminal

SAME_SIGNAL_S = 1.0
"""Signals this close together count as one: a scheduler may signal process and group, and a launcher forwards its own."""


class StopAfterStep:
    """Notes signals while it is open; the loop asks after every step, and saves before it ends."""

    SIGNALS = INTERRUPTS

    def __init__(self, ranks: Ranks):
        self._ranks = ranks
        self._noted_s: float | None = None

    def __enter__(self) -> StopAfterStep:
        self._ours = threading.current_thread() is threading.main_thread()  # only there can signals be handled
        if self._ours:
            # SIGHUP is ignored under nohup, and stays so
            taken = [n for n in self.SIGNALS if n != signal.SIGHUP or signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in taken}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._ours:
            for number, handler in self._before.items():
                signal.signal(number, handler)

    def wanted(self) -> bool:
        """Whether any rank has had a signal; every rank calls this."""
        return self._ranks.any(self._noted_s is not None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        leave_closed_terminal()
        if self._noted_s is None:
            self._noted_s = now_s
            log.print("Stopping after this step; a second signal stops at once.")
        elif now_s - self._noted_s > SAME_SIGNAL_S:
            raise KeyboardInterrupt


class TimeUp(BaseException):
    """Raised by `time_limit`: like Ctrl-C, it ends whatever is being done."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeUp in the main thread after so many seconds, wherever it is then; in another thread there is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
