"""Ctrl-C, a scheduler's SIGTERM, and the SIGHUP of a closed terminal.

They are an interrupt where one is expected, and an end at once while modules are loaded.

A KeyboardInterrupt in the middle of an import is lost: packages catch it and go on with half a module, or raise another error,
as transformers did ten seconds later ("Could not import module 'set_seed'"). It is the standard library alone that is imported
here, so that `kernrl/__main__.py` can listen before anything else is loaded.
"""

from __future__ import annotations

import atexit
import os
import signal
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130
"""Exit code of an interrupted command."""

IMPORTS = "<frozen importlib._bootstrap>"
"""The file name of an import's frames."""

LOADERS = ("__main__.py", "cli.py")
"""Files of this folder whose imports are those of a command that has not begun: it has nothing to save or to close."""

CLEAR = b"\r\x1b[2K\x1b[?25h"
"""What clears a terminal's line, and shows the cursor that `console.loading_torch` hides beside it."""

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

AGAIN_S = 0.05
"""Time after which an interrupt is tried again that met a later import."""


def handle_signals() -> None:
    """Take these signals from here on. Under a launcher it is SIGINT alone: after the others it would wait for a rank that
    hangs."""
    launched = "LOCAL_RANK" in os.environ
    for number in (signal.SIGINT,) if launched else INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as it is under nohup
            signal.signal(number, interrupt)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, end the process where its command is still being loaded, or wait for an import to end.

    A scheduler may send two signals, to the process and to its group, and a closed terminal and its shell one each: one is
    enough.
    """
    if "LOCAL_RANK" not in os.environ:
        for later in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(later, signal.SIG_IGN)
    leave_closed_terminal()
    importer = _importer(frame)
    if importer is None:
        raise KeyboardInterrupt
    if os.path.dirname(importer) == os.path.dirname(__file__) and os.path.basename(importer) in LOADERS:
        if "LOCAL_RANK" not in os.environ and sys.__stderr__:  # a launcher says it for its ranks
            stderr = sys.__stderr__.fileno()
            redrawn = os.isatty(stderr) and os.environ.get("TERM") not in (None, "dumb")
            os.write(stderr, (CLEAR if redrawn else b"") + b"kernrl: Interrupted.\n")
        os._exit(INTERRUPTED)
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)


def leave_closed_terminal() -> None:
    """What is printed to a terminal that is gone goes nowhere: it would raise, where a step is still to be saved."""
    for stream in (1, 2):
        with suppress(OSError):  # closed from the start
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def leave(exit_code: int) -> NoReturn:
    """End the process: run what libraries registered for its end, but wait for no thread where it was interrupted.

    A thread that is still inside torch when the interpreter is torn down would abort the process with "terminate called
    without an active exception". A signal ends it at once.
    """
    for number in INTERRUPTS:
        again = signal.SIG_IGN if number == signal.SIGHUP else lambda *_: os._exit(INTERRUPTED)
        signal.signal(number, again)
    if exit_code != INTERRUPTED:
        threading._shutdown()  # as the interpreter does: pools that are still open end their threads first  # pyright: ignore
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or never there
            stream.flush()
    os._exit(exit_code)


@contextmanager
def blocked_interrupts() -> Iterator[None]:
    """A process that is started in this context, by this thread, begins with these signals blocked.

    Ctrl-C in a terminal reaches every process of a command, and one that is still starting would print a traceback. Our own
    signals wait for the end of the context.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _importer(frame: FrameType | None) -> str | None:
    """The file of the outermost import statement that is being run; None where there is none."""
    found = None
    while frame is not None:
        if frame.f_code.co_filename == IMPORTS and frame.f_back is not None and frame.f_back.f_code.co_filename != IMPORTS:
            found = frame.f_back.f_code.co_filename
        frame = frame.f_back
    return found
