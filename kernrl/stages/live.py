"""A run to look at while it runs: one line a step."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.live import Live
from rich.table import Table

from kernrl.console import log

SHOWN = 20
"""Steps on the screen."""

COLUMNS = {
    "step": "{}",
    "reward": "{:.3f}",
    "correct": "{:.0%}",
    "fast_1": "{:.0%}",
    "speed_geomean_x": "{:.2f}x",
    "length": "{:.0f}",
    "entropy": "{:.3f}",
    "kl": "{:.4f}",
    "clip_fraction": "{:.1%}",
    "mismatch_kl": "{:.1e}",
    "seconds.generate": "{:.1f}",
    "seconds.verify": "{:.1f}",
    "seconds.update": "{:.1f}",
    "gpu_hours": "{:.2f}",
    "cost": "{:.2f}",
}
"""Metric → how it is written; a metric that no step has is left out."""

TITLES = {"speed_geomean_x": "speed", "clip_fraction": "clip", "mismatch_kl": "mismatch", "gpu_hours": "GPU h"}


class LiveTable:
    """The last steps as a table that grows; where stderr is no terminal, one plain line a step instead."""

    def __init__(self, steps: int):
        self._steps, self._lines = steps, []
        self._live = Live(console=log, refresh_per_second=4, transient=True) if log.is_terminal and not log.quiet else None

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
        if self._live:
            self._live.update(steps_table(self._lines[-SHOWN:], f"step {metrics['step']} of {self._steps}"))
        else:
            cells = [f"{_title(name)} {cell}" for name, cell in zip(COLUMNS, _cells(metrics), strict=True) if cell]
            log.print(", ".join(cells), highlight=False, soft_wrap=True)
        for alarm in metrics.get("alarms", ()):
            log.print(f"step {metrics['step']}: {alarm}", style="yellow", highlight=False, soft_wrap=True)


def steps_table(lines: Sequence[dict[str, Any]], title: str) -> Table:
    """Metrics of steps, one line each."""
    rows = [_cells(line) for line in lines]
    shown = [n for n in range(len(COLUMNS)) if any(row[n] for row in rows)]
    table = Table(title=title, box=None, pad_edge=False)
    for n in shown:
        table.add_column(_title(list(COLUMNS)[n]), justify="right")
    for row in rows:
        table.add_row(*(row[n] for n in shown))
    return table


def final_table(history: Sequence[dict[str, Any]], title: str) -> Table:
    """The first and the last steps of a run, for the end."""
    first = history[:1] if len(history) > SHOWN else []
    return steps_table([*first, *history[-SHOWN:]], title)


def _title(name: str) -> str:
    return TITLES.get(name, name.removeprefix("seconds."))


def _cells(metrics: dict[str, Any]) -> list[str]:
    return ["" if (value := _look_up(metrics, name)) is None else form.format(value) for name, form in COLUMNS.items()]


def _look_up(metrics: dict[str, Any], dotted: str) -> Any:
    value: Any = metrics
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
