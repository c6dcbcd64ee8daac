"""Where words go: what was asked for to stdout, everything else to stderr. And what a stage hands to the CLI."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment
from rich.syntax import Syntax

if TYPE_CHECKING:
    from rich.progress import Progress


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # rich calls this while it handles the error, and would exit with 1; the CLI decides that


out = _Console()
"""stdout. rich honours NO_COLOR and leaves the styles out where stdout is no terminal."""

log = _Console(stderr=True)
"""stderr: remarks and progress. `--quiet` sets `log.quiet`."""


class Code:
    """Source as it is: coloured and wrapped in a terminal, line by line elsewhere, as a reader may run it."""

    def __init__(self, source: str):
        self.source = source

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if console.is_terminal:
            yield Syntax(self.source, "python", word_wrap=True, background_color="default")
        else:
            yield Segment(self.source if self.source.endswith("\n") else f"{self.source}\n")


@dataclass(frozen=True)
class Result:
    """What `run(config)` of a stage returns, for the CLI to print."""

    data: Any
    """What `--json` prints: made of dicts, lists, strings, numbers, booleans and None."""
    view: RenderableType = ""
    """What a person sees instead; a plain string is printed as it is, without wrapping."""
    exit_code: int = 0
    """0, or 1 where the command ran well and the answer is no."""


def launched() -> bool:
    """Whether a launcher (torchrun, accelerate) started this process, as one of several or not."""
    return "LOCAL_RANK" in os.environ


def leads() -> bool:
    """Whether this process speaks: under a launcher, only rank 0 does."""
    return os.environ.get("RANK", "0") == "0"


def progress() -> Progress:
    """A progress bar on stderr; it is silent under `--quiet` and where stderr is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=log, transient=True, disable=log.quiet or not log.is_terminal)
