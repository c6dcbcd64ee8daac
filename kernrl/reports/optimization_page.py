"""The page of `kernrl optimize`: one task in full, or a table of many. Made from the files of a run alone.

Like every page it needs nothing else: no script, no network; what a model wrote reaches it through autoescaping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from kernrl import __version__
from kernrl.reports.svg import Row, Series, line_chart, percent, seconds, speed_rows, times
from kernrl.tasks.graph.drawing import draw
from kernrl.tasks.graph.graph import Graph
from kernrl.verifier.base.verdict import Verdict
from kernrl.verifier.explain import svg

MOST_BARS = 24
"""Candidates whose speed is drawn; the fastest and no more, as a bar is a line of the page."""

Rows = Sequence[Mapping[str, Any]]


def render(results: Sequence[Mapping[str, Any]], rows: Mapping[str, Rows], title: str) -> str:
    """The page.

    Args:
        results: `results.json` of each task.
        rows: Task id → its rows of `candidates.jsonl`.
    """
    views = [_view(result, rows.get(result["task"], ())) for result in results]
    table = {"table_head": table_head(results), "table": table_rows(results)}
    return _template().render(title=title, version=__version__, views=views, several=len(views) > 1, **table)


def _view(result: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
    best = result.get("best") or {}
    verdict = Verdict.from_json(best["verdict"]) if best else None
    graph = result.get("graph")
    ranking = result.get("ranking", ())  # older runs have none
    counted = [f"{result['tried']} tried", f"{result['judged']} judged", f"{result['correct']} correct"]
    return {
        "task": result["task"],
        "sentence": result["sentence"],
        "modelled": result["clock"] == "modelled",
        "counts": f"{', '.join(counted)} in {seconds(result['spent_s'])}; ended: {result['ended']}",
        "graph": Markup(_inner(draw(Graph.from_json(graph), result["task"]))) if graph else "",  # drawn by us, which escapes
        "plans": Markup(_inner(svg(verdict))) if verdict else "",
        "speeds": _speeds(rows, best.get("id")),
        "speeds_of": _speeds_of(sum(1 for row in rows if ratio_of(row))),
        "every": [_tried(row) for row in rows],
        "progress": _best_over_time(rows),
        "ranking_head": ["the best", "µs", *(f"against {name}" for name in _baselines(ranking))],
        "ranking": [_ranked(row, _baselines(ranking)) for row in ranking],
        "origins": [(origin, times(ratio)) for origin, ratio in result["by_origin"].items()],
        "regret": [(n, "none right" if r is None else percent(r)) for n, r in result["regret"].items()],
        "source": best.get("source", ""),
        "facts": [(name, str(value)) for name, value in result["versions"].items()],
    }


def _baselines(ranking: Rows) -> list[str]:
    return list(dict.fromkeys(name for row in ranking for name in row["speedups_x"]))


def _ranked(row: Mapping[str, Any], baselines: Sequence[str]) -> list[str]:
    """Name, time, and speed against each baseline with its interval where that was measured."""
    cells = [f"{row['id']}: {row['name']}", f"{row['us']:.1f}"]
    for name in baselines:
        speed = row["speedups_x"].get(name)
        if speed is None:
            cells.append("not timed")
        elif row["clock"] == "modelled":
            cells.append(times(speed["value"]))
        else:
            noise = "" if speed["significant"] else ", within the noise"
            cells.append(f"{times(speed['value'])} [{speed['low']:.2f}, {speed['high']:.2f}]{noise}")
    return cells


def _inner(text: str) -> str:
    """An SVG file as it can stand inside a page."""
    return text[text.find("<svg") :] if "<svg" in text else ""


def ratio_of(row: Mapping[str, Any]) -> float | None:
    """Speedup of a row against the first baseline; None where it is not correct or not timed."""
    verdict = row["verdict"]
    speed = verdict.get("speedup_x") if verdict["status"] == "correct" else None
    return float(speed["value"]) if speed else None


def _speeds(rows: Rows, best: str | None) -> Markup:
    timed = [(ratio, row) for row in rows if (ratio := ratio_of(row))]
    timed.sort(key=lambda entry: -entry[0])
    bars = []
    for ratio, row in timed[:MOST_BARS]:
        speed = row["verdict"]["speedup_x"]
        modelled = row["verdict"]["timing"]["kind"] == "modelled"
        low, high = (None, None) if modelled else (speed["low"], speed["high"])
        mark = " (the winner)" if row["id"] == best else ""
        bars.append(Row(f"{row['id']}: {row['name']}{mark}"[:60], ratio, low, high))
    return speed_rows(bars, label="speed of each candidate against the first baseline")


def _speeds_of(timed: int) -> str:
    return f"The fastest {MOST_BARS} of {timed} that were timed" if timed > MOST_BARS else "Every candidate that was timed"


def _tried(row: Mapping[str, Any]) -> list[str]:
    """A candidate whatever became of it: id, name, status, speed, and the reason where it is not right."""
    verdict, ratio = row["verdict"], ratio_of(row)
    of = f" (from {row['parent']})" if row.get("parent") else ""
    right = verdict["status"] == "correct"
    return [
        row["id"],
        f"{row['name']}{of}",
        verdict["status"],
        times(ratio) if ratio else "",
        "" if right else verdict["reason"],
    ]


def _best_over_time(rows: Rows) -> Markup:
    x, y, best = [], [], 0.0
    for row in sorted(rows, key=lambda r: r["at_s"]):
        best = max(best, ratio_of(row) or 0.0)
        if best:
            x.append(float(row["at_s"]))
            y.append(best)
    return line_chart([Series("best so far", x, y)], label="best so far", x_label="seconds", y_format=times)


def table_head(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of the table of many tasks."""
    head = ["task", "result", "eager", "compile", "origin", "correct", "time"]
    return [*head, "why not"] if any(map(_refused, results)) else head


def table_rows(results: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The table of many tasks, with the reason where a task was not searched."""
    width = len(table_head(results))
    return [[*_row(result), _refused(result)][:width] for result in results]


def _refused(result: Mapping[str, Any]) -> str:
    return result["sentence"].removeprefix(f"{result['task']}: ") if result["ended"] == "not searched" else ""


def _row(result: Mapping[str, Any]) -> list[str]:
    """Task, speed against each baseline, origin of the winner, candidates and seconds."""
    best = result.get("best")
    speeds = best["verdict"]["timing"]["speedups_x"] if best else {}
    mark = "*" if result["clock"] == "modelled" else ""
    shown = {name: times(speed["value"]) + mark for name, speed in speeds.items()}
    what = "faster" if result["faster"] else "a tie" if best else "-"
    origin = best["origin"] if best else ""
    counts = f"{result['correct']}/{result['judged']}"
    cells = [result["task"], what, shown.get("eager", ""), shown.get("compile", ""), origin, counts]
    return [*cells, f"{result['spent_s']:.0f} s"]


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("optimization.html.j2")
