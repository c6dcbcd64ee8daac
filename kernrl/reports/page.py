"""One run, or several compared, as a single HTML page that needs nothing else: no script, no network, no other file.

Everything a model wrote, and every name, reaches the page through jinja2's autoescaping, `Markup.format` or pygments, all of
which escape; and the page's content policy forbids scripts and requests, should one of them ever fail to.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from kernrl import __version__
from kernrl.reports import gallery, run_charts
from kernrl.reports.gallery import Cheat, Exhibit
from kernrl.reports.results import THRESHOLDS_X, compare, if_modelled, judged_of, summarise
from kernrl.reports.run_charts import Panel
from kernrl.reports.run_files import Run, Sample, number
from kernrl.reports.svg import counted, percent, seconds, times
from kernrl.reports.tables import comparison_text, conditions, figure_text
from kernrl.settings import flatten

LAST_SHARE = 10
"""Of a training run's steps, the last tenth is what its figures describe, and the first tenth what it came from."""


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


def summarise_run(run: Run) -> dict[str, Any]:
    """The figures of a run: of its newest samples where it trained, of all where it only asked."""
    return summarise(newest(run.samples)[0])


def newest(samples: Sequence[Sample]) -> tuple[list[Sample], str]:
    """The samples of the last tenth of the steps, and words for which those are."""
    return _of_steps(samples, last=True)


def oldest(samples: Sequence[Sample]) -> tuple[list[Sample], str]:
    """The samples of the first tenth of the steps, and words for which those are."""
    return _of_steps(samples, last=False)


def _of_steps(samples: Sequence[Sample], *, last: bool) -> tuple[list[Sample], str]:
    steps = sorted({s.step for s in samples})
    if len(steps) < 2:
        return list(samples), ""
    count = math.ceil(len(steps) / LAST_SHARE)
    chosen = set(steps[-count:] if last else steps[:count])
    words = f"step {min(chosen)}" if count == 1 else f"steps {min(chosen)} to {max(chosen)}"
    return [s for s in samples if s.step in chosen], words


def comparisons(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Each later run against the first, of those that sampled; training on tasks of its own is nothing to compare with."""
    first = newest(runs[0].samples)[0]
    sampled = [run for run in runs[1:] if run.samples and first]
    changes = [{"name": run.name, **compare(first, newest(run.samples)[0])} for run in sampled]
    return [change for run, change in zip(sampled, changes, strict=True) if change["tasks"] or run.stage in ("", "eval")]


def render_report(runs: Sequence[Run], *, title: str | None = None, gpu_hour_price: float | None = None) -> str:
    """The page for one or more runs.

    Args:
        title: Of the page; the runs' names by default.
        gpu_hour_price: What an hour of the GPU costs, in any currency; by default the price in the run's own config.
    """
    views = [_view(run, index, gpu_hour_price) for index, run in enumerate(runs)]
    several = len(views) > 1
    return _environment().get_template("report.html.j2").render(
        title=title or ", ".join(run.name for run in runs),
        version=__version__,
        views=views,
        several=several,
        differences=[comparison_text(runs[0].name, c) for c in comparisons(runs)] if several else [],
        training=run_charts.training_panels(runs),
        few_steps=run_charts.few_steps(runs),
        fast_p=_fast_p(views),
        source_styles=gallery.source_styles(),
        rows_of=_table_rows,
        tiles_of=_tiles,
        conditions=conditions,
        figure_text=figure_text,
        if_modelled=if_modelled,
    )  # fmt: skip


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


def lead(run: Run, results: dict[str, Any], scope: str) -> str:
    """The run in a sentence or two."""
    if not run.samples:
        return "No candidate has been judged in this run." if run.metrics else "Nothing has happened in this run yet."
    if not results["samples"]:
        return "No candidate of this run could be judged."
    candidates, share = counted(results["samples"], "candidate"), results["correct"]["value"]
    of = f"Of the {candidates} of {scope}" if scope else f"Of {candidates}"
    if some := judged_of(results):
        of = f"{some.capitalize()}. {of}"
    said = f"{of}, for {counted(results['tasks'], 'task')}, {percent(share) if share else 'none'} are correct"
    if not share:
        return f"{said}."
    if not results["baseline"]:
        return f"{said}. None was timed."
    faster, speed = results["fast_1"]["value"], results["geomean_x"]["value"]
    clock = f"{if_modelled(results, ' by the model of') or ' on'} {results['timing']['device']}"
    said = f"{said} and {percent(faster)} are also faster than {results['baseline']}{clock}."
    return said if speed is None else f"{said} The correct ones have {times(speed)} its speed, as a geometric mean."


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
        for key in (*(f"fast_{p:g}" for p in THRESHOLDS_X), "fast_1_significant", "geomean_x"):
            cells = [figure_text(f[key], as_times=key == "geomean_x") for f in results["baselines"].values()]
            rows.append((key, cells))
    return rows


def _fast_p(views: Sequence[RunView]) -> Panel | None:
    """Runs as lines; of one training run, its beginning and its end."""
    baselines = next((list(v.results["baselines"]) for v in views if v.results["baselines"]), [])
    mark = if_modelled(views[0].results)
    if len(views) == 1 and views[0].scope:
        before, words = oldest(views[0].run.samples)
        return run_charts.fast_p_panel([(words, before), (views[0].scope, views[0].samples)], baselines, mark)
    named = [(v.run.name + (if_modelled(v.results) if not mark else ""), v.samples) for v in views]
    return run_charts.fast_p_panel(named, baselines, mark)


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
