"""A command in a terminal of its own, where Ctrl-C reaches every process of it, as a user's does."""

from __future__ import annotations

import os
import re
import select
import time
from collections.abc import Sequence

from support.warm_commands import start


def interrupted(arguments: Sequence[str], when: str, *, presses: int = 1, close: bool = False) -> tuple[int, str]:
    """Run `kernrl` with these arguments, and press Ctrl-C once what it has written matches `when`.

    Args:
        presses: how often, half a second apart.
        close: close the terminal instead.

    Returns its exit code, and what it wrote from the first Ctrl-C on.
    """
    terminal, theirs = os.openpty()
    process = start(["-m", "kernrl", *arguments], theirs, terminal=True, TERM="xterm", COLUMNS="200")
    os.close(theirs)
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
    return process.wait(), written[after:].replace("\r", "")
