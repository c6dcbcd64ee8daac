"""Refuse modules that switch autocast on: on a GPU they compute in 16 bits, and tensors without memory do not show it.

On a machine without a GPU, torch switches `torch.autocast("cuda")` off by itself, so what counts is what the module asks for.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

_PATCHING = threading.RLock()
"""Held within `without_autocast`, which changes a class of torch's."""


class AutocastError(RuntimeError):
    """The module switches autocast on. The message has the line, if a task's source does it."""


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Within, entering an autocast that is asked for raises AutocastError; one with `enabled=False` changes nothing."""
    kind: Any = torch.amp.autocast_mode.autocast
    make, enter = kind.__init__, kind.__enter__

    def noted(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None) -> None:
        make(self, device_type, dtype, enabled, cache_enabled)
        self.asked_for = enabled

    def refused(self: Any) -> Any:
        if getattr(self, "asked_for", self._enabled):
            raise AutocastError(f"it switches on torch.autocast{_line()}: leave that out, or cast by hand")
        return enter(self)

    with _PATCHING:
        kind.__init__, kind.__enter__ = noted, refused
        try:
            yield
        finally:
            kind.__init__, kind.__enter__ = make, enter


def _line() -> str:
    frame = sys._getframe(2)
    while frame and not frame.f_code.co_filename.startswith("<task "):
        frame = frame.f_back
    return f" at line {frame.f_lineno}" if frame else ""
