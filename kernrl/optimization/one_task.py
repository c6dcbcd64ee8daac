"""One task from its source to its files: lift, search, best.py, verdict, page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.optimization.best_file import best_file
from kernrl.optimization.proposals import Model, given, styles
from kernrl.optimization.search import Limits, Search
from kernrl.optimization.trials import Progress, Proposal, Trial, beats
from kernrl.optimization.words import not_won, require_usable, won
from kernrl.reports.optimization_page import render
from kernrl.runs.run_directory import RunDirectory, read_lines
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import device_for
from kernrl.verifier.base.verdict import Status
from kernrl.verifier.verifier import HardenedVerifier

REGRET_AFTER = (8, 16, 32, 64)
CANDIDATES = "candidates.jsonl"


@dataclass(frozen=True)
class Settings:
    """What a search may do."""

    candidates: int = 64
    budget_s: float = 120.0
    keep_tie: bool = False
    model: Model | None = None
    more: Sequence[Proposal] = ()
    """Candidates from disk."""
    on_progress: Callable[[Progress], None] = field(default=lambda progress: None)


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    results: dict[str, Any]
    """As `results.json` has them."""
    best: Trial | None
    """The best candidate, where it is faster or a tie was asked for."""
    interrupted: bool


def optimize_task(task: Task, verifier: HardenedVerifier, settings: Settings, folder: Path) -> Found:
    """Search for a faster form of a task, and write what is found into `folder`; earlier trials there count.

    Raises:
        UsageError: The task cannot be lifted and there is nothing else to try, or its inputs have no elements.
    """
    started = time.monotonic()
    task, graph = _understood(task, verifier, settings)
    known = [Trial.from_row(row) for row in read_lines(folder / CANDIDATES)]
    known = [trial for trial in known if trial.verdict.status is not Status.INFRA_ERROR]
    verifier.evaluator.start()
    device = device_for(verifier.evaluator.target)
    assert device
    worked = styles(task, device, verifier.evaluator.precision_of(task)) if graph else []
    directory, measured = RunDirectory(folder), bool(verifier.evaluator.gpus)
    limits = Limits(settings.candidates, settings.budget_s, measured, max(2, verifier.evaluator.workers))
    search = Search(
        task,
        verifier,
        limits,
        started=started,
        known=known,
        on_trial=lambda trial: directory.append(CANDIDATES, trial.to_row(task, len(search.trials) - 1)),
        on_progress=settings.on_progress,
    )
    first = [*settings.more, *given(task), *worked]
    wanted = max(0, (settings.candidates - len(first) - len(known)) // 2) if worked else settings.candidates
    samples = settings.model.sample(task, wanted) if settings.model and wanted else None
    try:
        search.run(first, samples)
    finally:
        if samples:
            samples.stop()
    if samples and samples.failed and not search.trials:
        raise samples.failed
    return _written(task, graph, search, settings, folder)


def _understood(task: Task, verifier: HardenedVerifier, settings: Settings) -> tuple[Task, Graph | None]:
    """The task with its input sets, and its Graph."""
    try:
        graph = lift(task)
        require_usable(task, graph)
        return with_input_sets(task, verifier.evaluator.cache_dir), graph
    except UsageError as error:
        if type(error) is UsageError or not (settings.model or settings.more or task.solutions):
            raise
        return task, None  # a model reads the source, whatever it computes


def _written(task: Task, graph: Graph | None, search: Search, settings: Settings, folder: Path) -> Found:
    ranking = search.best()
    best = ranking[0] if ranking else None
    timing = best.verdict.timing if best else None
    baseline = next(iter(timing.speedups_x)) if timing else "eager"
    faster = best is not None and beats(best.verdict, baseline)
    kept = best if faster or settings.keep_tie else None
    device = device_for(timing.device if timing else "H200") or device_for("H200")
    assert device
    sentence = won(best, task) if best and faster else not_won(task, ranking, search.trials, graph, device)
    results = {
        "task": task.id,
        "sentence": sentence,
        "faster": faster,
        "clock": timing.kind if timing else "measured" if search.limits.measured else "modelled",
        "device": timing.device if timing else None,
        "best": _best_row(best) if best else None,
        "tried": len(search.trials),
        "judged": len(search.trials),
        "correct": sum(trial.verdict.correct for trial in search.trials),
        "ended": search.ended,
        "budget_s": settings.budget_s,
        "spent_s": round(search.spent_s, 2),
        "by_origin": by_origin(search.trials),
        "regret": regret(search.trials),
        "finals": {trial_id: verdict.to_json() for trial_id, verdict in search.finals.items()},
        "versions": search.trials[0].verdict.versions if search.trials else {},
        "graph": graph.to_json() if graph else None,
        "file": "best.py" if kept else None,
    }
    if kept:
        made = {"date": time.strftime("%Y-%m-%d")}
        replace_file(folder / "best.py", best_file(task, kept, made))
        replace_file(folder / "verdict.json", json.dumps(kept.verdict.to_json(), indent=2))
    else:  # of an earlier start that was interrupted
        for name in ("best.py", "verdict.json"):
            (folder / name).unlink(missing_ok=True)
    rows = read_lines(folder / CANDIDATES)
    replace_file(folder / "report.html", render([results], {task.id: rows}, f"A faster {task.id}"))
    replace_file(folder / "results.json", json.dumps(results, indent=2))  # last: a task with results is finished
    return Found(results, kept, search.ended == "interrupted")


def _best_row(trial: Trial) -> dict[str, Any]:
    p = trial.proposal
    named = {"id": trial.id, "origin": p.origin, "name": p.name, "parent": p.parent, "sha": p.key, "source": p.source}
    return named | {"verdict": trial.verdict.to_json()}


def by_origin(trials: Sequence[Trial]) -> dict[str, float]:
    """Origin → speedup of its best candidate."""
    found: dict[str, float] = {}
    for trial in trials:
        if trial.ratio:
            found[trial.proposal.origin] = max(trial.ratio, found.get(trial.proposal.origin, 0.0))
    return found


def regret(trials: Sequence[Trial]) -> dict[str, float | None]:
    """N → by how much the best of all beats the best of the first N, 0.02 for 2 %; None where none of those is right."""
    ratios = [trial.ratio or 0.0 for trial in trials]
    best = max(ratios, default=0.0)
    counts = [n for n in REGRET_AFTER if n <= len(ratios)] if best else []
    return {str(n): (best / first - 1 if (first := max(ratios[:n])) else None) for n in counts}
