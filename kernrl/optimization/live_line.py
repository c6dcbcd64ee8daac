"""What is said while searches run: one line that is redrawn, or a line now and then where that cannot be."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich.text import Text

from kernrl.console import log, now_and_then
from kernrl.optimization.search.trials import Progress

READING = "reading the module"
MOST_SHOWN = 4
"""Searches that are named in the line."""

Show = Callable[[Progress], None]


class LiveLine:
    """How the searches of a run go.

    Args:
        total: Tasks; with one, nothing is counted.
    """

    def __init__(self, total: int = 1):
        self.total, self.done, self.faster = total, 0, 0
        self._running: dict[str, str] = {}
        self._lock = threading.Lock()
        self._update: Callable[[str], None] = lambda text: None

    def begin(self, name: str) -> Show:
        """A search begins; returns what is told of its progress."""
        self._say(name, READING)
        return lambda progress: self._say(name, progress_words(progress, short=self.total > 1))

    def end(self, name: str, faster: bool = False) -> None:
        """A search is over."""
        with self._lock:
            self._running.pop(name, None)
            self.done, self.faster = self.done + 1, self.faster + faster
        self._update(str(self))

    def _say(self, name: str, said: str) -> None:
        with self._lock:
            self._running[name] = said
        self._update(str(self))

    def __str__(self) -> str:
        with self._lock:
            shown = [f"{name}: {said}" for name, said in self._running.items()]
        done = f"{self.done} of {self.total} done, {self.faster} faster; correct/judged/tried"
        counts = [done] if self.total > 1 else []
        return " | ".join([*counts, *shown[:MOST_SHOWN]])

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Within, the line is shown on stderr; nothing is under `--quiet`."""
        status = log.status(Text(str(self))) if log.redraws else None
        if status is not None:
            self._update = lambda text: status.update(Text(text))
        with status or nullcontext(), now_and_then(lambda: str(self)):
            yield
        self._update = lambda text: None


def progress_words(progress: Progress, *, short: bool = False) -> str:
    """`best 1.43× (fused-rows); 12 tried, 10 judged, 9 correct; 71 s left`; `short`: `1.43×, 9/10/12, 71 s left`."""
    best = progress.best
    timing = best.verdict.timing if best else None
    modelled = " modelled" if timing and timing.kind == "modelled" else ""
    left = f"{max(0.0, progress.budget_s - progress.spent_s):.0f} s left"
    if short:
        speed = f"{best.ratio:.2f}×{modelled and '*'}" if best and best.ratio else "-"
        return f"{speed}, {progress.correct}/{progress.judged}/{progress.tried}, {left}"
    said = f"best {best.ratio:.2f}×{modelled} ({best.proposal.name})" if best and best.ratio else "nothing right yet"
    counts = f"{progress.tried} tried, {progress.judged} judged, {progress.correct} correct"
    return f"{said}; {counts}; {left}"
