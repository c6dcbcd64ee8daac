"""Where words go: what was asked for to stdout, everything else to stderr. And what a stage hands to the CLI."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.syntax import Syntax

if TYPE_CHECKING:
    from rich.progress import Progress


NO_WIDTH = 10_000
"""Columns of what has no width of its own."""


class OwnConsole(Console):
    """rich's, which breaks sentences between words and knows `--quiet`."""

    @property
    def redraws(self) -> bool:
        """Whether a line can be shown and replaced: in a terminal that moves its cursor, and not under `--quiet`."""
        return self.is_terminal and not self.is_dumb_terminal and not self.quiet

    def print(self, *objects: Any, soft_wrap: bool | None = None, **settings: Any) -> None:
        """As rich does; sentences that it would not wrap (`soft_wrap`) are broken between words in a terminal, and lines
        elsewhere have no spaces at their ends."""
        if soft_wrap:
            objects = tuple(self.by_words(thing) if isinstance(thing, str) else thing for thing in objects)
        if not self.is_terminal:
            objects = tuple(thing if isinstance(thing, str) else _Trimmed(thing) for thing in objects)
        super().print(*objects, soft_wrap=soft_wrap, **settings)

    def by_words(self, text: str) -> str:
        """Lines of prose no wider than this terminal. Commands, indented lines and whatever has no spaces stay whole, so that
        they can be copied, and all of it where there is no terminal."""
        if not self.is_terminal:
            return text
        broken = []
        for line in text.split("\n"):
            prose = len(line) > self.width and line[:1] not in (" ", "$")
            broken += wrap(line, self.width, break_long_words=False, break_on_hyphens=False) if prose else [line]
        return "\n".join(broken)

    def on_broken_pipe(self) -> None:
        raise  # rich calls this while it handles the error, and would exit with 1; the CLI decides that


out = OwnConsole()
"""stdout. rich honours NO_COLOR and leaves the styles out where stdout is no terminal."""

FIRST_S = 5.0
"""Seconds after which the first line says what is being done, where no line can be redrawn: what takes less is done without."""

log = OwnConsole(stderr=True)
"""stderr: remarks and progress. `--quiet` sets `log.quiet`."""


class LogLines(logging.Handler):
    """Prints messages of the libraries' loggers as our own are printed."""

    def emit(self, record: logging.LogRecord) -> None:
        log.print(self.format(record), style="yellow", highlight=False, markup=False, soft_wrap=True)


UNSEEN = {n: 0x2400 + n for n in range(32) if chr(n) not in "\t\n"} | dict.fromkeys(range(0x7F, 0xA0), 0xFFFD)
"""Control characters → a sign for each: a model writes what it likes, and a terminal would do what it says."""


class Code:
    """Source as it is, in colours in a terminal. No line is broken, so that what is copied from a terminal runs, too."""

    def __init__(self, source: str):
        self.source = source

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(0, 0)  # what stands beside it is no wider for its sake

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.is_terminal:
            text = Syntax("", "python", background_color="default").highlight(self.source.translate(UNSEEN))
            text.rstrip()
            yield from console.render(text, options.update(no_wrap=True, overflow="ignore"))
        else:
            yield Segment(self.source if self.source.endswith("\n") else f"{self.source}\n")


class Prose(str):
    """Sentences: a terminal gets them broken between words."""

    __slots__ = ()


class Whole:
    """Lines as long as they are where there is no terminal: a log is searched, and nobody reads it at a width."""

    def __init__(self, view: RenderableType):
        self.view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wanted = Measurement.get(console, options.update(max_width=NO_WIDTH), self.view).maximum
        if console.is_terminal or wanted == NO_WIDTH:
            yield self.view
        else:
            yield from console.render(self.view, options.update(width=max(options.max_width, wanted)))


class _Trimmed:
    """Lines without the spaces that a layout puts at their ends. Source keeps its own: it comes with its line ends inside."""

    def __init__(self, view: RenderableType):
        self.view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line: list[Segment] = []
        for segment in console.render(self.view, options):
            if segment.text == "\n":
                while line and not line[-1].text.rstrip(" "):
                    line.pop()
                if line:
                    line[-1] = line[-1]._replace(text=line[-1].text.rstrip(" "))
            line.append(segment)
            if segment.text == "\n":
                yield from line
                line.clear()
        yield from line


class Lines:
    """Text whose lines are as long as they are; a terminal wraps them. Prose is broken between words there."""

    def __init__(self, text: str):
        self.text = text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        text = console.by_words(self.text) if isinstance(self.text, Prose) and isinstance(console, OwnConsole) else self.text
        yield Segment(f"{text}\n")


@dataclass(frozen=True)
class Result:
    """What `run(config)` of a stage returns, for the CLI to print."""

    data: Any
    """What `--json` prints: made of dicts, lists, strings, numbers, booleans and None."""
    view: RenderableType = ""
    """What a person sees instead; a plain string is printed as it is, without wrapping, unless it is Prose."""
    exit_code: int = 0
    """0, or 1 where the command ran well and the answer is no."""


def counted(number: int, one: str, many: str = "") -> str:
    """`1 task`, `2 tasks`; words whose plural is no `s` more, or that have a verb with them, come with `many`."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def launched() -> bool:
    """Whether a launcher (torchrun, accelerate) started this process, as one of several or not."""
    return "LOCAL_RANK" in os.environ


def leads() -> bool:
    """Whether this process speaks: under a launcher, only rank 0 does."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def progress(first_s: float | None = None, every_s: float = 30.0) -> Iterator[Progress]:
    """A progress bar on stderr; a line now and then where that cannot be redrawn; nothing under `--quiet`.

    Args:
        first_s, every_s: seconds to the first line (FIRST_S if None), and between lines.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # `track` counts in a thread of its own, which ends at once where nothing is redrawn, unless refreshing is up to us
    bar = Progress(*columns, console=log, transient=True, disable=not log.redraws, auto_refresh=log.redraws)

    def line() -> str:
        said = []
        for task in bar.tasks:
            left = f", about {task.time_remaining:.0f} s left" if task.time_remaining else ""
            said.append(f"{task.description}: {task.completed:,.0f} of {task.total or 0:,.0f}{left}")
        return "; ".join(said)

    with bar, now_and_then(line, first_s, every_s):
        yield bar


@contextlib.contextmanager
def waiting(text: str, first_s: float | None = None, every_s: float = 30.0) -> Iterator[None]:
    """Say what is being done, where nothing can be counted: beside a spinner, or as lines where that cannot be redrawn."""
    began = time.monotonic()
    shown = log.status(text) if log.redraws else contextlib.nullcontext()
    with shown, now_and_then(lambda: f"{text}: {time.monotonic() - began:.0f} s", first_s, every_s):
        yield


@contextlib.contextmanager
def loading_torch() -> Iterator[None]:
    """Say that torch is being loaded, unless it is there already: it takes seconds, and a minute from a slow disk."""
    if "torch" in sys.modules or launched():  # a launcher has said it for its ranks
        yield
        return
    if not log.redraws:
        log.print("loading torch")
    with waiting("loading torch", first_s=30.0):
        yield


@contextlib.contextmanager
def now_and_then(line: Callable[[], str], first_s: float | None = None, every_s: float = 30.0) -> Iterator[None]:
    """Print the line after the first seconds and then at intervals, where nothing is redrawn."""
    ended = threading.Event()

    def repeat() -> None:
        wait_s = FIRST_S if first_s is None else first_s
        while not ended.wait(wait_s):
            wait_s = every_s
            log.print(line(), markup=False, highlight=False, soft_wrap=True)

    if not log.redraws and not log.quiet:
        threading.Thread(target=repeat, name="now and then", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
