"""A command in a terminal of its own, where Ctrl-C reaches every process of it, as a user's does."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Sequence


def interrupted(arguments: Sequence[str], when: str, *, presses: int = 1, close: bool = False) -> tuple[int, str]:
    """Run `kernrl` with these arguments, and press Ctrl-C once what it has written matches `when`.

    Args:
        presses: how often, half a second apart.
        close: close the terminal instead.

    Returns its exit code, and what it wrote from the first Ctrl-C on.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
        os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", TERM="xterm", COLUMNS="200")
        os.execv(sys.executable, [sys.executable, "-m", "kernrl", *arguments])
    written, after, next_s = "", 0, 0.0
    try:
        while True:
            if select.select([terminal], [], [], 0.02)[0]:
                try:
                    written += os.read(terminal, 65_536).decode(errors="replace")
                except OSError:  # it has ended
                    break
            if close and re.search(when, written):
                break
            if presses and time.monotonic() > next_s and re.search(when, written):
                after = after or len(written)
                os.write(terminal, b"\x03")
                presses, next_s = presses - 1, time.monotonic() + 0.5
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), written[after:].replace("\r", "")
