"""One run, or several compared, as a single HTML page that needs nothing else: no script, no network, no other file.

Everything a model wrote, and every name, reaches the page through jinja2's autoescaping, `Markup.format` or pygments, all of
which escape; and the page's content policy forbids scripts and requests, should one of them ever fail to.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from kernrl import __version__
from kernrl.console import counted
from kernrl.reports import gallery, run_charts
from kernrl.reports.comparable_runs import RunsByKind, comparisons, newest, runs_by_kind, summarise_run
from kernrl.reports.gallery import Cheat, Exhibit
from kernrl.reports.headline import headline, lead
from kernrl.reports.results import THRESHOLDS_X, if_modelled, summarise
from kernrl.reports.run_charts import Panel
from kernrl.reports.run_files import Run, Sample, number
from kernrl.reports.svg import percent, seconds, times
from kernrl.reports.tables import comparison_text, conditions, figure_text, wins_text
from kernrl.reports.task_changes import KernelDiff, TaskChange, kernel_diffs, task_changes
from kernrl.settings import flatten


@dataclass(frozen=True, slots=True)
class RunView:
    """What the page says of one run."""

    run: Run
    colour: int
    results: dict[str, Any]
    scope: str
    """Which samples the figures cover: empty for all."""
    samples: list[Sample]
    lead: str
    panels: list[Panel]
    time: list[Panel]
    cost: str
    best: list[Exhibit]
    instructive: list[Exhibit]
    cheats: list[Cheat]
    facts: list[tuple[str, str]]
    alarms: list[str]


def render_report(runs: Sequence[Run], *, title: str | None = None, gpu_hour_price: float | None = None) -> str:
    """The page for one or more runs.

    Args:
        title: Of the page; the runs' names by default.
        gpu_hour_price: What an hour of the GPU costs, in any currency; by default the price in the run's own config.
    """
    views = [_view(run, index, gpu_hour_price) for index, run in enumerate(runs)]
    several, by_kind = len(views) > 1, runs_by_kind(runs)
    changes = comparisons(runs) if several else []
    last = next((c for c in reversed(changes) if c["tasks"]), None)
    first = views[0] if not by_kind.compared else next(v for v in views if v.run.path == by_kind.compared[0].path)
    return _environment().get_template("report.html.j2").render(
        title=title or ", ".join(run.name for run in runs),
        version=__version__,
        views=views,
        several=several,
        headline=headline([first.run], by_kind, first.results, first.scope, last),
        groups=_groups(views, by_kind) if several else [],
        differences=[comparison_text(by_kind.compared[0].name if by_kind.compared else "", c) for c in changes],
        per_task=_per_task(by_kind, last) if last else None,
        training=run_charts.training_panels(runs),
        numbers=run_charts.training_numbers(runs),
        few_steps=run_charts.few_steps(runs),
        fast_p=_fast_p(views, by_kind),
        source_styles=gallery.source_styles(),
        rows_of=_table_rows,
        tiles_of=_tiles,
        conditions=conditions,
        figure_text=figure_text,
        wins_text=wins_text,
        if_modelled=if_modelled,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """Runs that may stand in one table."""

    title: str
    rows: list[tuple[RunView, dict[str, Any]]]
    """A run, and its figures on the group's tasks."""


def _groups(views: Sequence[RunView], by_kind: RunsByKind) -> list[Group]:
    by_path = {view.run.path: view for view in views}
    shared = by_kind.heading.capitalize()
    if by_kind.left_out:
        shared += f"; {counted(by_kind.left_out, 'sample')} of other tasks are left out"
    compared = [(by_path[run.path], summarise_run(run)) for run in by_kind.compared]
    groups = [Group(shared, compared)]
    for words, runs in (
        ("Training, each step on tasks of its own", by_kind.training),
        ("Other runs, on other tasks", by_kind.apart),
    ):
        groups.append(Group(words, [(by_path[run.path], by_path[run.path].results) for run in runs]))
    return [group for group in groups if group.rows]


@dataclass(frozen=True, slots=True)
class PerTask:
    """What changed for each task, and how the best kernels differ."""

    before: str
    after: str
    changes: list[TaskChange]
    diffs: list[KernelDiff]


def _per_task(by_kind: RunsByKind, change: Mapping[str, Any]) -> PerTask:
    before = by_kind.compared[0]
    after = next(run for run in by_kind.compared if run.name == change["name"])
    changes = task_changes(before, after)
    return PerTask(before.name, after.name, changes, kernel_diffs(before, after, changes))


def _view(run: Run, colour: int, gpu_hour_price: float | None) -> RunView:
    samples, scope = newest(run.samples)
    results = summarise(samples)
    funnel = run_charts.funnel_panel(results, samples)
    return RunView(
        run=run,
        colour=colour,
        results=results,
        scope=scope,
        samples=samples,
        lead=lead(run, results, scope),
        panels=[p for p in (funnel, *run_charts.breakdown_panels(results)) if p],
        time=run_charts.time_panels(run),
        cost=_cost(run, gpu_hour_price),
        best=gallery.best(run, run.samples),
        instructive=gallery.instructive(run, samples),
        cheats=gallery.cheats(run, run.samples),
        facts=_facts(run),
        alarms=[f"Step {row['step']}: {alarm}." for row in run.metrics for alarm in row.get("alarms") or ()],
    )


def _tiles(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(name, figure, its interval) of what a reader wants first."""
    mark = if_modelled(results)
    wanted = [("correct", "correct", percent)]
    wanted += [("fast_1", f"faster than {n}{mark}", percent) for n in results["baselines"]][:2]
    wanted.append(("geomean_x", f"speed against {results['baseline']}{mark}", times))
    tiles = []
    for index, (key, name, words) in enumerate(wanted):
        baseline = list(results["baselines"])[index - 1] if key == "fast_1" else None
        figure = (results["baselines"][baseline] if baseline else results).get(key)
        if figure and figure["value"] is not None:
            interval = "" if figure["low"] is None else f"{words(figure['low'])} to {words(figure['high'])}"
            tiles.append((name, words(figure["value"]), interval))
    return tiles


def _table_rows(results: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(figure, its cells): one cell where the baseline does not matter, else one a baseline."""
    plain = ["compiled", "correct", *(k for k in results if k.startswith("pass@") and k != "pass@1")]
    rows = [(key, [figure_text(results[key])]) for key in plain]
    if results["baselines"]:
        per_baseline = results["baselines"].values()
        rows += [(key, [wins_text(f, key) for f in per_baseline]) for key in (f"fast_{p:g}" for p in THRESHOLDS_X)]
        rows.append(("geomean_x", [figure_text(f["geomean_x"], as_times=True) for f in per_baseline]))
    return rows


def _fast_p(views: Sequence[RunView], by_kind: RunsByKind) -> Panel | None:
    """The evaluations that share tasks as lines; a run by itself, one line a baseline."""
    if len(views) == 1:
        view = views[0]
        return run_charts.fast_p_panel(
            [(view.run.name, view.samples)], list(view.results["baselines"]), if_modelled(view.results)
        )
    results = [summarise_run(run) for run in by_kind.compared]
    baselines = next((list(r["baselines"]) for r in results if r["baselines"]), [])
    mark = if_modelled(results[0]) if results else ""
    named = [(r.name + (if_modelled(f) if not mark else ""), r.samples) for r, f in zip(by_kind.compared, results, strict=True)]
    colours = [next(v.colour for v in views if v.run.path == run.path) for run in by_kind.compared]
    return run_charts.fast_p_panel(named, baselines, mark, colours) if named else None


def _cost(run: Run, price: float | None) -> str:
    """Wall time, and money where a price is known."""
    total = sum(run_charts.wall_seconds(run).values())
    if not total:
        return ""
    price = price if price is not None else number(run.config.get("config", {}).get("gpu_hour_price"))
    said = f"{seconds(total)} on the clock"
    if price is None or not run.config.get("gpu"):
        return f"{said}."
    return f"{said}, {total / 3600:.2f} GPU-hours: {total / 3600 * price:.2f} at {price:g} an hour."


def _facts(run: Run) -> list[tuple[str, str]]:
    """Where and how the run was made, and every setting."""
    known = run.config
    versions = ", ".join(f"{name} {number}" for name, number in (known.get("versions") or {}).items())
    facts = [
        ("started", known.get("started")),
        ("GPU", known.get("gpu")),
        ("versions", versions),
        ("commit", known.get("commit")),
    ]
    if argv := known.get("argv"):
        facts.append(("command", shlex.join(["kernrl", *map(str, argv[1:])])))
    facts += flatten(known.get("config") or {})
    shown = [
        (name, ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for name, value in facts
        if value is not None
    ]
    return [(name, value) for name, value in shown if value]


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
