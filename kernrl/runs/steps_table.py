"""The table of a run's steps, live and at the end: one line a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kernrl.console import log

SHOWN = 20
"""Steps on the screen."""

COLUMNS = {
    "step": "{}",
    "reward": "{:.3f}",
    "correct": "{:.0%}",
    "fast_1": "{:.0%}",
    "speed_geomean_x": "{:.2f}×",
    "heldout.reward": "{:.3f}",
    "heldout.correct": "{:.0%}",
    "length": "{:.0f}",
    "entropy": "{:.3f}",
    "kl_ref": "{:.4f}",
    "clip_low": "{:.1%}",
    "clip_high": "{:.1%}",
    "mismatch_kl": "{:.1e}",
    "seconds.ask": "{:.1f}",
    "seconds.generate": "{:.1f}",
    "seconds.verify": "{:.1f}",
    "seconds.update": "{:.1f}",
    "seconds.step": "{:.1f}",
    "attempts_per_s": "{:.1f}",
    "gpu_hours": "{:.2f}",
    "cost": "{:.2f}",
}
"""Metric → its format; a metric that no step has is left out."""

FIRST = (
    "step", "reward", "correct", "fast_1", "speed_geomean_x", "heldout.reward", "heldout.correct", "seconds.step", "length",
    "entropy",
)  # fmt: skip
"""The columns that a narrow terminal shows, the most wanted first; the others follow where there is room."""

GAP = 2
"""Spaces between columns."""

TITLES = {
    "speed_geomean_x": "speed", "kl_ref": "kl", "mismatch_kl": "mismatch", "gpu_hours": "GPU h", "attempts_per_s": "replies/s",
    "heldout.reward": "held-out reward", "heldout.correct": "held-out correct",
}  # fmt: skip


class LiveTable:
    """The last steps as a live table; where that cannot be redrawn, one plain line a step."""

    def __init__(self, steps: int | None, doing: Callable[[], str] = lambda: ""):
        """`steps` of the run, None where time ends it; `doing` says what is being done, for a line under the table."""
        self._steps, self._doing = steps, doing
        self._lines: list[dict[str, Any]] = []
        self._live = Live(console=log, get_renderable=self._now, refresh_per_second=4, transient=True) if log.redraws else None

    def __enter__(self) -> LiveTable:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def add(self, metrics: dict[str, Any]) -> None:
        """Show one more step."""
        self._lines.append(metrics)
        if self._live is None:
            cells = [f"{_title(name)} {cell}" for name in COLUMNS if (cell := _cell(metrics, name))]
            log.print(", ".join(cells), highlight=False, soft_wrap=True)
        for alarm in metrics.get("alarms", ()):
            log.print(f"step {metrics['step']}: {alarm}", style="yellow", highlight=False, soft_wrap=True)

    def _now(self) -> RenderableType:
        line = Text(self._doing(), "dim")
        if not self._lines:
            return line
        step = f"step {self._lines[-1]['step']}"
        return Group(steps_table(self._lines[-SHOWN:], step if self._steps is None else f"{step} of {self._steps}"), line)


def steps_table(lines: Sequence[dict[str, Any]], title: str) -> Group:
    """Metrics of steps, one line each, below a title: one of the table itself would be as narrow as the table."""
    widths = _widths(lines, log.width)
    if any(line.get("modelled") for line in lines):
        title = f"{title} (speeds are modelled)"
    table = Table(box=None, pad_edge=False)
    for name, width in widths.items():
        table.add_column(_title(name), justify="right", width=width)
    for line in lines:
        table.add_row(*(_cell(line, name) for name in widths))
    return Group(Text(title, style="italic"), table)


def _widths(lines: Sequence[dict[str, Any]], room: int) -> dict[str, int]:
    """The columns that fit, with their widths: none is cut; titles are broken between words where there is no room for them."""
    widths: dict[str, int] = {}
    room += GAP  # there is none after the last
    for name in (*FIRST, *(name for name in COLUMNS if name not in FIRST)):
        cells = [_cell(line, name) for line in lines]
        width = max(map(len, (*_title(name).split(), *cells)))
        if any(cells) and width + GAP <= room:
            widths[name] = width
            room -= width + GAP
    for name, width in widths.items():
        whole = max(width, len(_title(name)))
        if whole - width <= room:
            widths[name] = whole
            room -= whole - width
    return {name: widths[name] for name in COLUMNS if name in widths}


def final_table(history: Sequence[dict[str, Any]], title: str) -> Group:
    """The first and the last steps of a run, for the end."""
    first = history[:1] if len(history) > SHOWN else []
    return steps_table([*first, *history[-SHOWN:]], title)


def _title(name: str) -> str:
    # seconds of a phase: `step s`, as `step` is its number
    return f"{name.removeprefix('seconds.')} s" if name.startswith("seconds.") else TITLES.get(name, name)


def _cell(metrics: dict[str, Any], name: str) -> str:
    value: Any = metrics
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else COLUMNS[name].format(value)
