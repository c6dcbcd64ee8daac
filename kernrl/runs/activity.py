"""What a run is doing, for someone who waits: a line under a table, or one every 30 s where nothing can be redrawn and in
`log.txt`."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from rich.live import Live
from rich.text import Text

from kernrl.console import FIRST_S, counted, leads, log

EVERY_S = 30.0
"""Seconds between lines where there is no terminal, and in the log file."""

FILE = "log.txt"


class Activity:
    """The line that says what is being done. While it is open, a thread repeats the line.

    Args:
        folder: of the run, for `log.txt`; None writes none, as before a run has a folder.
    """

    def __init__(self, folder: Path | None = None, every_s: float = EVERY_S):
        self.folder = folder
        self._every_s = every_s
        self._line: Callable[[], str] = lambda: ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="activity", daemon=True)

    def __enter__(self) -> Activity:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        self._line = lambda: ""

    def phase(self, text: str) -> None:
        """Say at once what begins now, and later also how long it has been running."""
        began = time.monotonic()

        def line() -> str:
            passed = time.monotonic() - began
            return text if passed < FIRST_S else f"{text}: {passed:.0f} s"

        self._line = line
        self._say(text)

    def follow(self, line: Callable[[], str]) -> None:
        """From now on, `line` says how far it is; it is called from other threads."""
        self._line = line

    def line(self) -> str:
        """What is being done at this moment."""
        return self._line()

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the line in a terminal, by itself."""
        if not log.redraws:
            yield
            return
        with Live(console=log, get_renderable=lambda: Text(self.line(), "dim"), refresh_per_second=4, transient=True):
            yield

    def _repeat(self) -> None:
        said, since = "", 0.0
        while not self._ended.wait(self._every_s):
            text = self._line()
            if text != said:
                said, since = text, time.monotonic()
                same = ""
            else:  # a CPU may take minutes to read the prompts of a batch: silence would look like a run that hangs
                same = f"; the same for {duration(time.monotonic() - since)}"
            if text:
                self._say(f"{text}{same}")

    def _say(self, text: str) -> None:
        if not leads():
            return
        if not log.redraws:
            log.print(text, markup=False, highlight=False, soft_wrap=True)
        if self.folder is not None:
            with contextlib.suppress(OSError), (self.folder / FILE).open("a", encoding="utf-8") as file:  # no log ends a run
                file.write(f"{time.strftime('%H:%M:%S')} {text}\n")


class SamplingWatch:
    """Counts replies, tokens and verdicts as they come, for a line such as

        step 2 of 40: 34 of 96 replies, 12,345 tokens, 410 tokens/s, 20 verdicts, about 12 min to go

    Methods are called from the threads that sample and judge; a line that is a moment old does no harm.
    """

    def __init__(self, title: str = ""):
        self.title = title
        """What the replies are for."""
        self.steps_done, self.steps = 0, 0
        """Of the whole run; 0 steps where there is only one."""
        self._run_began = time.perf_counter()
        self._steps_before = 0
        self._limit_s: float | None = None
        self._reset()

    def _reset(self) -> None:
        self._began = time.perf_counter()
        self._expected = self._sampled = self._judged = self._tokens = 0
        self._live = False

    def begin_steps(self, done: int, steps: int, limit_s: float | None = None) -> None:
        """The run begins at this step, or goes on there; after `limit_s` seconds it begins no more of them."""
        self._steps_before, self.steps_done, self.steps, self._run_began = done, done, steps, time.perf_counter()
        self._limit_s = limit_s

    def expect(self, replies: int) -> None:
        """So many replies will be sampled: in place of those that have all come, or besides those that have not."""
        if self._sampled >= self._expected:
            self._reset()
        self._expected += replies

    def decoded(self, tokens: int) -> None:
        """So many tokens more, of replies that may not have ended."""
        self._live = True
        self._tokens += tokens

    def sampled(self, tokens: int) -> None:
        """A reply has ended."""
        self._sampled += 1
        self._tokens += 0 if self._live else tokens

    def judged(self) -> None:
        """A verdict is in."""
        self._judged += 1

    def line(self) -> str:
        """How far it is."""
        if self.steps and self.steps_done >= self.steps and self._limit_s is None:
            return "writing the model"
        place = f"step {self.steps_done + 1}{self._of()}" if self.steps else ""
        head = ", ".join(part for part in (self.title, place) if part)
        if not self._expected:
            return f"{head}: preparing prompts" if head else "preparing prompts"
        said = [self.sampling(), counted(self._judged, "verdict")]
        if self.steps and 0 < self._expected <= min(self._sampled, self._judged):
            said.append("updating the weights")
        if left := self._left(time.perf_counter() - self._began):
            said.append(f"about {left} to go")
        return f"{head}: {', '.join(said)}" if head else ", ".join(said)

    def sampling(self) -> str:
        """`34 of 96 replies, 12,345 tokens, 410 tokens/s`; the pace while there is one."""
        if not self._expected:
            return "preparing prompts"
        said = [f"{self._sampled} of {counted(self._expected, 'reply', 'replies')}", counted(self._tokens, "token")]
        if self._sampled < self._expected:
            said.append(f"{self._tokens / max(time.perf_counter() - self._began, 1e-9):,.0f} tokens/s")
        return ", ".join(said)

    def _of(self) -> str:
        """` of 40`, or where time ends the run, how much of it is gone."""
        if self._limit_s is None:
            return f" of {self.steps}"
        return f", after {duration(time.perf_counter() - self._run_began)} of {duration(self._limit_s)}"

    def _left(self, spent: float) -> str:
        """Of the run where some of its steps are done, else of what is being sampled."""
        taken = self.steps_done - self._steps_before
        if self.steps and taken:
            ran = time.perf_counter() - self._run_began
            steps_s = ran / taken * (self.steps - self.steps_done)
            return duration(steps_s if self._limit_s is None else min(steps_s, max(0.0, self._limit_s - ran)))
        done = min(self._judged, self._sampled)
        whole = " of the step" if self.steps else ""
        return f"{duration(spent / done * (self._expected - done))}{whole}" if 0 < done < self._expected else ""


def time_left(began: float, done: int, total: int) -> str:
    """`, about 40 s left` at the pace so far; nothing before anything is done.

    Args:
        began: by the performance counter.
    """
    return f", about {duration((time.perf_counter() - began) / done * (total - done))} left" if 0 < done < total else ""


def duration(seconds: float) -> str:
    """`40 s`, `12 min`, `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
