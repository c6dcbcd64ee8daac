"""`kernrl report`: a page of one run, or a comparison of several, from their files alone."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kernrl.config import ReportConfig
from kernrl.console import Result
from kernrl.files import replace_file, require_ours
from kernrl.reports.comparable_runs import comparisons, runs_by_kind, summarise_run
from kernrl.reports.headline import lead
from kernrl.reports.page import render_report
from kernrl.reports.run_charts import wall_seconds
from kernrl.reports.run_files import Run, read_run
from kernrl.reports.tables import phases_view, results_view, runs_view
from kernrl.runs.steps_table import final_table

OURS = '<meta name="generator" content="kernrl'


def run(config: ReportConfig) -> Result:
    """Write the page; show the same figures as tables."""
    runs = [read_run(path) for path in config.runs]
    page = config.output or config.runs[0] / "report.html"
    require_ours(page, OURS, "--output")
    replace_file(page, render_report(runs, title=config.title, gpu_hour_price=config.gpu_hour_price))

    figures = [(run.name, summarise_run(run)) for run in runs]
    changes = comparisons(runs)
    by_kind = runs_by_kind(runs)
    # of the evaluations, on the tasks that they share
    shared = {run.name: summarise_run(run) for run in by_kind.compared}
    view = one_run(runs[0], figures[0][1]) if len(runs) == 1 else runs_view(by_kind, dict(figures) | shared, changes)
    problems = [Text(f"{run.name}: {problem}", style="yellow") for run in runs for problem in run.problems]
    data = {"page": str(page), "runs": [{"run": str(run.path), **f} for run, (_, f) in zip(runs, figures, strict=True)]}
    return Result(data | {"comparisons": changes}, Group(view, *problems, Text(f"\n{page}")))


def one_run(run: Run, results: dict[str, Any]) -> Group:
    """The steps of a training run, its results, and the time of each phase."""
    parts: list[RenderableType] = []
    if any("reward" in row for row in run.metrics):
        parts += [final_table(run.metrics, "steps"), Text()]
    parts += [results_view(results) if run.samples else Text(lead(run, results, "")), Text()]
    if spent := wall_seconds(run):
        parts.append(phases_view(spent))
    return Group(*parts)
