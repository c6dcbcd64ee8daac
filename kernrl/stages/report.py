"""`kernrl report`: make a page of one run, or compare several, from nothing but their files."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from kernrl.config import ReportConfig
from kernrl.console import Result
from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.reports.report import comparisons, render_report, summarise_run
from kernrl.reports.run_files import read_run
from kernrl.reports.tables import results_view, runs_view

OURS = '<meta name="generator" content="kernrl'


def run(config: ReportConfig) -> Result:
    """Write the page, and give the same figures as tables."""
    runs = [read_run(path) for path in config.runs]
    page = config.output or config.runs[0] / "report.html"
    # a page can be made again at any time; anything else of that name is someone's work
    if page.exists() and (page.is_dir() or OURS not in page.read_text(encoding="utf-8", errors="replace")[:1000]):
        raise UsageError(f"--output: {page} exists and is no report of kernrl; name another file.")
    replace_file(page, render_report(runs, title=config.title, gpu_hour_price=config.gpu_hour_price))

    figures = [(run.name, summarise_run(run)) for run in runs]
    changes = comparisons(runs)
    view = results_view(figures[0][1]) if len(runs) == 1 else runs_view(figures, changes)
    problems = [Text(f"{run.name}: {problem}", style="yellow") for run in runs for problem in run.problems]
    data = {"page": str(page), "runs": [{"run": str(run.path), **f} for run, (_, f) in zip(runs, figures, strict=True)]}
    return Result(data | {"comparisons": changes}, Group(view, *problems, Text(f"\n{page}")))
