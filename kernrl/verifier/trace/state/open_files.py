"""Whether a candidate closes the files that it opens."""

from __future__ import annotations

import os
import select
from collections.abc import Mapping

from kernrl.verifier.trace.untraceable import Untraceable

_poll, _CLOSED, _fstat = select.poll, select.POLLNVAL, os.fstat
_MOST_FILES = 256
"""Numbers looked at. A process may open as many, and gives the lowest first."""


def open_files() -> dict[int, tuple[int, int]]:
    """The files that are open, by number: what each is."""
    asked = _poll()
    for number in range(_MOST_FILES):
        asked.register(number)
    closed = {number for number, events in asked.poll(0) if events & _CLOSED}
    return {n: (about.st_dev, about.st_ino) for n in range(_MOST_FILES) if n not in closed for about in (_fstat(n),)}


def check_closed(before: Mapping[int, tuple[int, int]]) -> None:
    """Raise Untraceable if a file is open that was not: what is read from it is not in the plan, and it may keep a count."""
    if open_files() != before:
        raise Untraceable("the code leaves a file open: close it, and keep what it says in tensors")
