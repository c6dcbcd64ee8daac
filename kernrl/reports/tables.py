"""The same figures for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernrl.reports.results import PAST_STAGE, THRESHOLDS_X, if_modelled, judged_of
from kernrl.reports.run_files import UNJUDGED
from kernrl.reports.svg import counted, percent, seconds, times
from kernrl.verifier.base.verdict import Stage, Status

Figure = Mapping[str, float | None]
"""`{value, low, high}`."""


def figure_text(figure: Figure | None, *, as_times: bool = False) -> str:
    """`62% [48, 74]`, `1.31× [1.2, 1.44]`, or `–` where there is nothing."""
    value, low, high = ((figure or {}).get(key) for key in ("value", "low", "high"))
    if value is None:
        return "–"
    head = times(value) if as_times else percent(value)
    if low is None or high is None:
        return head
    return f"{head} [{times(low)[:-1]}, {times(high)[:-1]}]" if as_times else f"{head} [{100 * low:.0f}, {100 * high:.0f}]"


def conditions(results: Mapping[str, Any]) -> str:
    """What every figure of an evaluation was measured on, in a line."""
    timing = results.get("timing")
    how = f"{timing['kind']} on {timing['device']}" if timing else "not timed"
    precision = ", ".join(results.get("precisions") or ()) or "no precision"
    counts = ", ".join(counted(results.get(noun + "s", 0), noun) for noun in ("task", "sample", "run"))
    return f"{counts}; {precision}; {how}"


def results_view(results: Mapping[str, Any]) -> RenderableType:
    """`results.json` as a person reads it."""
    headline = [Text(judged_of(results), "bold")] if judged_of(results) else []
    parts: list[RenderableType] = [*headline, _main(results), Text(), _funnel(results)]
    for key, title in (("by_family", "family"), ("by_depth", "depth")):
        if len(results.get(key) or {}) > 1:
            parts += [Text(), _breakdown(results[key], title, if_modelled(results))]
    level = results.get("interval", {}).get("level", 0.95)
    remark = f"{conditions(results)}. Brackets: {level:.0%} interval over tasks."
    parts += [Text(), Text(remark, style="dim"), *(Text(note, style="yellow") for note in results.get("notes", ()))]
    return Group(*parts)


def _main(results: Mapping[str, Any]) -> Table:
    baselines = results.get("baselines") or {}
    heads = [f"against {name}{if_modelled(results)}" for name in baselines] or [""]
    table = Table("figure", *heads, box=None, pad_edge=False)
    for key in ("compiled", "correct", *(k for k in results if k.startswith("pass@") and k != "pass@1")):
        table.add_row(key, figure_text(results[key]))
    for key in (*(f"fast_{p:g}" for p in THRESHOLDS_X[1:]), "fast_1_significant"):
        if baselines:
            table.add_row(key, *(figure_text(figures[key]) for figures in baselines.values()))
    if baselines:
        table.add_row("geomean", *(figure_text(f["geomean_x"], as_times=True) for f in baselines.values()))
    return table


def _funnel(results: Mapping[str, Any]) -> Table:
    """How many candidates pass each stage, and what stopped the others."""
    table = Table("stage", "passed", box=None, pad_edge=False)
    for stage, figure in results.get("funnel", {}).items():
        table.add_row(PAST_STAGE[Stage(stage)], figure_text(figure))
    others = {status: count for status, count in results.get("statuses", {}).items() if status != Status.CORRECT}
    for title, wanted in (("stopped", False), ("not judged", True)):
        if listed := [f"{count} {status}" for status, count in others.items() if (status in UNJUDGED) == wanted]:
            table.add_row(title, ", ".join(listed))
    return table


def phases_view(spent_s: Mapping[str, float]) -> Table:
    """Wall time by phase."""
    table = Table("phase", "time", "share", box=None, pad_edge=False)
    for phase, value in spent_s.items():
        table.add_row(phase, seconds(value), percent(value / sum(spent_s.values())))
    return table


def _breakdown(rows: Mapping[str, Mapping[str, Any]], title: str, mark: str) -> Table:
    table = Table(title, "tasks", "correct", f"fast_1{mark}", f"geomean{mark}", box=None, pad_edge=False)
    for name, row in rows.items():
        speed = figure_text(row.get("geomean_x"), as_times=True)
        table.add_row(name, str(row["tasks"]), figure_text(row["correct"]), figure_text(row.get("fast_1")), speed)
    return table


def runs_view(
    named_results: Sequence[tuple[str, Mapping[str, Any]]], comparisons: Sequence[Mapping[str, Any]]
) -> RenderableType:
    """Several runs, one a row, and what changed since the first."""
    table = Table("run", "tasks", "samples", "correct", "fast_1", "geomean", box=None, pad_edge=False)
    for name, results in named_results:
        counts = (str(results.get("tasks", 0)), str(results.get("samples", 0)))
        speed = figure_text(results.get("geomean_x"), as_times=True) + if_modelled(results)
        table.add_row(name, *counts, figure_text(results.get("correct")), figure_text(results.get("fast_1")), speed)
    lines = [Text(comparison_text(named_results[0][0], c)) for c in comparisons]
    return Group(table, *([Text(), *lines] if lines else []))


def comparison_text(first: str, comparison: Mapping[str, Any]) -> str:
    """One sentence on what changed from the run `first` to `comparison['name']`."""
    name, tasks = comparison["name"], comparison["tasks"]
    if not tasks:
        return f"{first} → {name}: no task in common, so nothing can be compared."
    said = [f"correct {_points(comparison['correct'])}"]
    if "fast_1_significant" in comparison:
        said.append(f"fast_1, wins beyond the noise, {_points(comparison['fast_1_significant'])}")
    elif "fast_1" in comparison:
        said.append(f"fast_1, every win counted, {_points(comparison['fast_1'])}")
    else:
        said.append("speeds are not compared, as nothing was timed in both by one clock")
    if "speed_ratio_x" in comparison:
        ratio = figure_text(comparison["speed_ratio_x"], as_times=True)
        said.append(f"speed {ratio} on the {comparison['solved_by_both']} that both solve")
    return f"{first} → {name}, on the {counted(tasks, 'task')} of both: {'; '.join(said)}."


def _points(figure: Figure) -> str:
    """A difference of shares in percentage points."""
    value, low, high = (figure[key] for key in ("value", "low", "high"))
    interval = "" if low is None or high is None else f" [{100 * low:+.0f}, {100 * high:+.0f}]"
    return "–" if value is None else f"{100 * value:+.1f} points{interval}"
