"""The result of a run, or of several, in one sentence: what came out, of which model, on which device, when, and how exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kernrl.console import counted
from kernrl.reports.comparable_runs import RunsByKind
from kernrl.reports.results import if_modelled, judged_of
from kernrl.reports.run_files import Run
from kernrl.reports.svg import percent, times
from kernrl.reports.tables import comparison_text


def headline(
    runs: Sequence[Run], by_kind: RunsByKind, results: Mapping[str, Any], scope: str, change: Mapping[str, Any] | None
) -> str:
    """The page's first sentence.

    Args:
        results: the figures of the first run that is shown.
        scope: which of its samples they cover; empty for all.
        change: from the first evaluation to the last, where there are two.
    """
    if change and change["tasks"]:
        said = comparison_text(by_kind.compared[0].name, change)
        asked = [run for run in by_kind.compared if run.name in (by_kind.compared[0].name, change["name"])]
    else:
        said, asked = lead(runs[0], results, scope), runs[:1]
    about = circumstances(asked, results)
    return f"{said.rstrip('.')} ({about})." if about else said


def circumstances(runs: Sequence[Run], results: Mapping[str, Any]) -> str:
    """`nano, modelled for H200, fp32, 2026-11-22`; what is not known is left out."""
    models = dict.fromkeys(_short(str(m)) for run in runs if (m := (run.config.get("config") or {}).get("model")))
    timing = results.get("timing")
    how = {"modelled": "modelled for", "measured": "measured on"}
    device = f"{how[timing['kind']]} {timing['device']}" if timing else ""
    dates = sorted({str(run.config["started"])[:10] for run in runs if run.config.get("started")})
    span = " to ".join(dict.fromkeys([*dates[:1], *dates[-1:]]))
    known = (" → ".join(models), device, ", ".join(results.get("precisions") or ()), span)
    return ", ".join(word for word in known if word)


def _short(model: str) -> str:
    """A hub id or a name as it is; of a folder's path, the end."""
    return "/".join(model.rstrip("/").split("/")[-2:])


def lead(run: Run, results: Mapping[str, Any], scope: str) -> str:
    """The run's result in a sentence."""
    if not run.samples:
        return "No candidate has been judged in this run." if run.metrics else "Nothing has happened in this run yet."
    if not results["samples"]:
        return "No candidate of this run could be judged."
    return lead_of_results(results, scope)


def lead_of_results(results: Mapping[str, Any], scope: str = "") -> str:
    """The figures of at least one judged candidate in a sentence."""
    candidates, share = counted(results["samples"], "candidate"), results["correct"]["value"]
    of = f"Of the {candidates} of {scope}" if scope else f"Of {candidates}"
    if some := judged_of(results):
        of = f"{some.capitalize()}. {of}"
    said = f"{of}, for {counted(results['tasks'], 'task')}, {percent(share) if share else 'none'} are correct"
    if not share:
        return f"{said}."
    if not results["baseline"]:
        return f"{said}; none was timed."
    faster, speed = results["fast_1"]["value"], results["geomean_x"]["value"]
    clock = f"{if_modelled(results, ' by the model of') or ' on'} {results['timing']['device']}"
    said = f"{said} and {percent(faster)} are also faster than {results['baseline']}{clock}"
    return f"{said}." if speed is None else f"{said}; the correct ones have {times(speed)} its speed, as a geometric mean."
