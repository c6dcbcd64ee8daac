"""Where a worker's time goes, on its GPU's own time line, so that measuring makes nobody wait."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

MOST_MARKS = 4096
"""Blocks that are remembered until somebody asks."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What one candidate took of a process."""

    peak_bytes: int
    """Most that was in use."""
    held_bytes: int
    """Most that was taken from the GPU, what is cached and what graphs keep included."""
    seconds: dict[str, float]
    """See `Clock.take`."""


class Clock:
    """Seconds by what they were spent on. On a GPU, from when it reaches a block until it has done it, other processes' turns
    included."""

    def __init__(self) -> None:
        self._marks: deque[tuple[str, Any, Any]] = deque(maxlen=MOST_MARKS)

    @contextlib.contextmanager
    def at(self, name: str) -> Iterator[None]:
        """Count a block's time as `name`'s, unless it raises."""
        begun = _mark()
        yield
        self._marks.append((name, begun, _mark()))

    def restart(self) -> None:
        """Forget what was counted so far."""
        self._marks.clear()

    def take(self) -> dict[str, float]:
        """What was counted since the last call; waits for what is still under way."""
        found: dict[str, float] = defaultdict(float)
        for name, begun, ended in self._marks:
            if isinstance(begun, float):
                found[name] += ended - begun
            else:
                ended.synchronize()
                found[name] += begun.elapsed_time(ended) / 1e3
        self._marks.clear()
        return dict(found)


def _mark() -> Any:
    """A CUDA event, or a number of seconds."""
    if not torch.cuda.is_initialized():
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
