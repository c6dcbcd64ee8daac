"""The same figures for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernrl.console import counted
from kernrl.reports.comparable_runs import RunsByKind
from kernrl.reports.results import PAST_STAGE, THRESHOLDS_X, if_modelled, judged_of
from kernrl.reports.run_files import UNJUDGED
from kernrl.reports.svg import percent, seconds, signed, times
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
    """`results.json` as a person reads it, every figure."""
    headline = [Text(judged_of(results), "bold")] if judged_of(results) else []
    parts: list[RenderableType] = [*headline, _main(results), Text(), _funnel(results)]
    for key, title in (("by_family", "family"), ("by_depth", "ops")):
        if len(results.get(key) or {}) > 1:
            parts += [Text(), _breakdown(results[key], title, if_modelled(results))]
    return Group(*parts, Text(), *_remarks(results))


def results_brief(results: Mapping[str, Any]) -> RenderableType:
    """The figures that matter most, for the end of an evaluation: `results_view` has the rest."""
    table = Table(*_heads(results), box=None, pad_edge=False)
    passes = [k for k in results if k.startswith("pass@") and k != "pass@1"][-1:]
    _add_rows(table, results, ["correct", *passes], ["fast_1", "fast_1.5"])
    stopped = _stopped(results)
    return Group(table, *([Text(stopped)] if stopped else []), *_remarks(results))


def _remarks(results: Mapping[str, Any]) -> list[Text]:
    level = results.get("interval", {}).get("level", 0.95)
    remark = f"{conditions(results)}. Brackets: {level:.0%} interval over tasks."
    notes = [note for note in results.get("notes", ()) if "modelled for" not in note]  # the conditions say so
    return [Text(remark, style="dim"), *(Text(note, style="yellow") for note in notes)]


def _heads(results: Mapping[str, Any]) -> list[str]:
    return ["figure", *([f"against {name}{if_modelled(results)}" for name in results.get("baselines") or {}] or [""])]


def _add_rows(table: Table, results: Mapping[str, Any], plain: Sequence[str], timed: Sequence[str]) -> None:
    """A row a figure: one cell where the baseline does not matter, else one a baseline."""
    baselines = results.get("baselines") or {}
    for key in plain:
        table.add_row(key, figure_text(results[key]))
    for key in timed if baselines else ():
        table.add_row(key, *(wins_text(figures, key) for figures in baselines.values()))
    if baselines:
        table.add_row("geomean", *(figure_text(f["geomean_x"], as_times=True) for f in baselines.values()))


def wins_text(figures: Mapping[str, Figure], key: str) -> str:
    """fast_p, and where it differs how much it would be if every win counted: `62% [48, 74], 68% plain`."""
    beyond, plain = figures.get(key), figures.get(f"{key}_plain")
    said = figure_text(beyond)
    differs = plain and beyond and plain["value"] is not None and plain["value"] != beyond["value"]
    return f"{said}, {percent(plain['value'])} plain" if differs and plain and plain["value"] is not None else said


def _main(results: Mapping[str, Any]) -> Table:
    table = Table(*_heads(results), box=None, pad_edge=False)
    passes = (k for k in results if k.startswith("pass@") and k != "pass@1")
    _add_rows(table, results, ["compiled", "correct", *passes], [f"fast_{p:g}" for p in THRESHOLDS_X[1:]])
    return table


def _funnel(results: Mapping[str, Any]) -> Table:
    """How many candidates pass each stage, and what stopped the others."""
    table = Table("stage", "passed", box=None, pad_edge=False)
    for stage, figure in results.get("funnel", {}).items():
        table.add_row(PAST_STAGE[Stage(stage)], figure_text(figure))
    for title, wanted in (("stopped", False), ("not judged", True)):
        if listed := _counts(results, unjudged=wanted):
            table.add_row(title, ", ".join(listed))
    return table


def _counts(results: Mapping[str, Any], *, unjudged: bool) -> list[str]:
    others = {status: count for status, count in results.get("statuses", {}).items() if status != Status.CORRECT}
    return [f"{count} {status}" for status, count in others.items() if (status in UNJUDGED) == unjudged]


def _stopped(results: Mapping[str, Any]) -> str:
    """What became of candidates that are not correct, in a line."""
    parts = (("not correct", False), ("not judged", True))
    said = [f"{title}: {', '.join(listed)}" for title, wanted in parts if (listed := _counts(results, unjudged=wanted))]
    return "; ".join(said)


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
        table.add_row(name, str(row["tasks"]), figure_text(row["correct"]), wins_text(row, "fast_1"), speed)
    return table


def runs_view(
    by_kind: RunsByKind, summaries: Mapping[str, Mapping[str, Any]], comparisons: Sequence[Mapping[str, Any]]
) -> RenderableType:
    """Several runs: evaluations on the tasks that they share, training runs apart, and what changed since the first.

    Args:
        summaries: run's name → its figures.
    """
    parts: list[RenderableType] = []
    groups = (
        (by_kind.heading, by_kind.compared),
        ("training, each step on tasks of its own", by_kind.training),
        ("other runs, on other tasks", by_kind.apart),
    )
    for title, runs in groups:
        if not runs:
            continue
        figures = [summaries[run.name] for run in runs]
        mark = next((if_modelled(f) for f in figures if f.get("timing")), "")
        table = Table("run", "tasks", "samples", "correct", f"fast_1{mark}", f"geomean{mark}", box=None, pad_edge=False)
        for run, results in zip(runs, figures, strict=True):
            counts = (str(results.get("tasks", 0)), str(results.get("samples", 0)))
            unlike = if_modelled(results) if not mark else ""
            speed = figure_text(results.get("geomean_x"), as_times=True) + unlike
            table.add_row(run.name, *counts, figure_text(results.get("correct")), wins_text(results, "fast_1"), speed)
        parts += [Text(title, "bold"), table, Text()]
    first = by_kind.compared[0].name if by_kind.compared else ""
    return Group(*parts, *(Text(comparison_text(first, c)) for c in comparisons))


def comparison_text(first: str, comparison: Mapping[str, Any]) -> str:
    """One sentence on what changed from the run `first` to `comparison['name']`."""
    name, tasks = comparison["name"], comparison["tasks"]
    if not tasks:
        return f"{first} → {name}: no task in common, so nothing can be compared."
    said = [f"correct {_points(comparison['correct'])}"]
    if "fast_1" in comparison:
        which = "modelled" if comparison["modelled"] else "wins beyond the noise"
        said.append(f"fast_1, {which}, {_points(comparison['fast_1'])}")
    else:
        said.append("speeds are not compared, as nothing was timed in both by one clock")
    if "speed_ratio_x" in comparison:
        ratio = figure_text(comparison["speed_ratio_x"], as_times=True)
        said.append(f"speed {ratio} on the {comparison['solved_by_both']} that both solve")
    return f"{first} → {name}, on the {counted(tasks, 'task')} of both: {'; '.join(said)}."


def _points(figure: Figure) -> str:
    """A difference of shares in percentage points."""
    value, low, high = (figure[key] for key in ("value", "low", "high"))
    interval = "" if low is None or high is None else f" [{signed(100 * low, '.0f')}, {signed(100 * high, '.0f')}]"
    return "–" if value is None else f"{signed(100 * value)} points{interval}"
