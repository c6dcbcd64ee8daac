"""One task from its source to its files: lift, search, best.py, verdict, page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kernrl.console import log
from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.optimization.earlier import CANDIDATES, judged_under, read_earlier
from kernrl.optimization.results.best_file import best_file
from kernrl.optimization.results.result_text import failed, not_won, require_interpretable, require_rules, require_usable, won
from kernrl.optimization.search.budget import Budget, TooSmallBudgetError
from kernrl.optimization.search.finals import FINALISTS
from kernrl.optimization.search.judging import Judges
from kernrl.optimization.search.proposals import Ahead, Model, given, styles
from kernrl.optimization.search.search import Limits, Search
from kernrl.optimization.search.trials import Progress, Proposal, Trial, beats
from kernrl.reports.optimization_page import render
from kernrl.runs.run_directory import RunDirectory, read_lines
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.solutions.from_graph.styles import STYLES, graphs_of
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import device_for

REGRET_AFTER = (8, 16, 32, 64)


@dataclass(frozen=True)
class Settings:
    """What a search may do."""

    candidates: int = 64
    """Most that are tried, those of an earlier search included."""
    keep_tie: bool = False
    model: Model | None = None
    more: Sequence[Proposal] = ()
    """Candidates from disk."""
    on_progress: Callable[[Progress], None] = field(default=lambda progress: None)
    module: str = ""
    """Path or name of the module, for best.py."""
    may_ask: bool = True
    """Whether a user could name a model to ask, and is told so."""
    tasks_at_once: int = 1
    """Searches that share the verifier: each has its part of the candidates that are judged at once."""
    algebra: bool = True
    """Whether worked solutions are tried that do fewer operations than the task asks for."""


@dataclass(frozen=True)
class Found:
    """What a search came to."""

    results: dict[str, Any]
    """As `results.json` has them."""
    best: Trial | None
    """The best candidate, where it is faster or a tie was asked for."""
    interrupted: bool


@dataclass(frozen=True)
class Understood:
    """A task that was read."""

    task: Task
    """With its input sets."""
    graph: Graph | None
    """None where it cannot be lifted: then a model reads its source."""
    graphs: tuple[Graph, ...]
    """At each input set; none where it cannot be lifted."""


def optimize_task(task: Task, judges: Judges, settings: Settings, folder: Path, budget: Budget) -> Found:
    """Search for a faster form of a task, and write what is found into `folder`; earlier trials there count.

    Raises:
        UsageError: The task cannot be lifted and there is nothing else to try, or its inputs have no elements.
        TooSmallBudgetError: The budget ended before one candidate was judged.
    """
    search = TaskSearch(task, judges, settings, folder, budget)
    search.first_round()
    return search.write()


class TaskSearch:
    """The search for a faster form of one task, and its files."""

    def __init__(self, task: Task, judges: Judges, settings: Settings, folder: Path, budget: Budget):
        """Reads the task. Raises as `optimize_task`."""
        verifier = self.verifier = judges.verifier
        self.settings, self.folder = settings, folder
        self.improved = ""
        """What came of training a model on the task; '' where none was."""

        def prepared() -> Understood:
            found = _understood(task, judges, settings)
            verifier.evaluator.start()
            if unfit := verifier.unfit(found.task):
                raise UsageError(unfit)
            if not verifier.evaluator.gpus:
                require_interpretable(found.task, found.graph)
            return found

        self.read = budget.within(f"reading {task.id} and starting the verifier", prepared)
        self.task, self.under = self.read.task, judged_under(task, verifier)
        earlier = read_earlier(folder, task, self.under, settings.candidates)
        self._again = earlier.again
        if earlier.said:
            log.print(earlier.said, markup=False, highlight=False, soft_wrap=True)
        directory, measured = RunDirectory(folder), bool(verifier.evaluator.gpus)
        self.search = Search(
            self.task,
            judges.first,
            Limits(settings.candidates, measured, max(2, verifier.evaluator.workers // settings.tasks_at_once)),
            budget,
            finals_judge=judges.last,
            quiet=settings.model.turn if settings.model and settings.model.here else None,
            known=earlier.known,
            numbered=earlier.numbered,
            on_trial=lambda trial: directory.append(
                CANDIDATES, trial.to_row(self.task, len(self.search.trials) - 1) | {"under": self.under}
            ),
            on_progress=settings.on_progress,
        )

    def first_round(self, *, last: bool = True) -> None:
        """Try worked styles, candidates from disk, samples of the model, and variants of the best.

        Args:
            last: Whether no other round follows.
        """
        task, settings, lifted = self.task, self.settings, bool(self.read.graphs)
        device = device_for(self.verifier.evaluator.target)
        assert device
        first = [*self._again, *settings.more, *given(task)]
        precision = self.verifier.evaluator.precision_of(task)
        written = styles(self.read.graphs, task, device, precision, algebra=settings.algebra) if lifted else iter(())
        worked = Ahead(written)
        free = settings.candidates - len(first) - len(self.search.trials)
        wanted = samples_wanted(free, lifted=lifted)
        samples = settings.model.sample(task, wanted) if settings.model and wanted else None
        if settings.model and not wanted:
            said = f"{task.id}: the model is not asked: candidates that are there already take all --n {settings.candidates}."
            log.print(said, markup=False, highlight=False, soft_wrap=True)
        self._round(first, worked, samples, last)

    def second_round(self, model: Model | None, budget: Budget, show: Callable[[Progress], None]) -> None:
        """Try samples of an improved model, where there is one, and variants of what is the best then."""
        self.search.go_on(budget, len(self.search.trials) + self.settings.candidates, show)
        samples = model.sample(self.task, max(1, self.settings.candidates // 2)) if model else None
        self._round([], None, samples, last=True)

    def _round(self, first: Sequence[Proposal], worked: Ahead | None, samples: Ahead | None, last: bool) -> None:
        sources = [source for source in (worked, samples) if source]
        try:
            self.search.run(first, worked, samples, final=last)
        finally:
            for source in sources:
                source.stop()
        failed = next((source.failed for source in sources if source.failed), None)
        if self.search.trials:
            if failed:
                log.print(f"{self.task.id}: {failed}", markup=False, highlight=False, soft_wrap=True)
            return
        if failed:
            raise failed
        if self.search.ended == "budget":
            seconds = self.search.budget.seconds
            raise TooSmallBudgetError(
                f"{self.task.id}: a budget of {seconds:.3g} s is too small: no candidate was judged in it. Give more."
            )

    def write(self) -> Found:
        """Write the files of what was found so far."""
        return _written(self.read, self.search, self.settings, self.folder, {"improved": self.improved, "under": self.under})


def samples_wanted(free: int, *, lifted: bool) -> int:
    """How many samples a model is asked for: as many as variants get, and a quarter of what there is at least."""
    if not lifted:
        return max(0, free)
    return max(0, (free + 3) // 4, (free - len(STYLES)) // 2)


def _understood(task: Task, judges: Judges, settings: Settings) -> Understood:
    try:
        graph = lift(task)
        require_usable(task, graph)
        if not (settings.model or settings.more or task.solutions):
            require_rules(task, graph, ask=settings.may_ask)
        judges.start_ahead()  # as late as it is known to be needed, and before what takes a second
        task = judges.verifier.input_sets.complete(task)  # in another process: it lifts the module dozens of times
        return Understood(task, graph, graphs_of(task))
    except UsageError as error:
        if type(error) is UsageError or not (settings.model or settings.more or task.solutions):
            raise
        return Understood(task, None, ())  # a model reads the source, whatever it computes


def _written(read: Understood, search: Search, settings: Settings, folder: Path, said: dict[str, Any]) -> Found:
    task, graph = read.task, read.graph
    ranking = search.best()
    best = ranking[0] if ranking else None
    timing = best.verdict.timing if best else None
    baseline = next(iter(timing.speedups_x)) if timing else "eager"
    faster = best is not None and beats(best.verdict, baseline)
    kept = best if faster or settings.keep_tie else None
    device = device_for(timing.device if timing else "H200") or device_for("H200")
    assert device
    if best and faster:
        sentence = won(best, task)
    else:
        asked, stopped = settings.model is not None, search.ended == "interrupted"
        sentence = not_won(task, ranking, search.trials, graph, device, ask=settings.may_ask, model=asked, interrupted=stopped)
    if best and search.limits.measured and best.id not in search.finals:
        why = "the search was interrupted" if search.ended == "interrupted" else "the budget ended"
        sentence += f" Timed once and briefly, and not against every baseline: {why} before."
    results = {
        "task": task.id,
        "sentence": sentence,
        "faster": faster,
        "clock": timing.kind if timing else "measured" if search.limits.measured else "modelled",
        "device": timing.device if timing else None,
        "best": _best_row(best) if best else None,
        "ranking": [row for trial in ranking[:FINALISTS] if (row := _ranked_row(trial))],
        "tried": len(search.trials),
        "judged": len(search.trials),
        "correct": sum(trial.verdict.correct for trial in search.trials),
        "ended": search.ended,
        "failed": failed(search.trials),
        **said,
        "budget_s": search.budget_s,
        "spent_s": round(search.spent_s, 2),
        "first_right_s": next((round(trial.at_s, 2) for trial in search.trials if trial.ratio), None),
        "by_origin": by_origin(search.trials),
        "regret": regret(search.trials),
        "finals": {trial_id: verdict.to_json() for trial_id, verdict in search.finals.items()},
        "versions": search.trials[0].verdict.versions if search.trials else {},
        "graph": graph.to_json() if graph else None,
        "file": "best.py" if kept else None,
    }
    if kept:
        made = {"date": time.strftime("%Y-%m-%d"), "module": settings.module}
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


def _ranked_row(trial: Trial) -> dict[str, Any] | None:
    """One of the best: what it is, and its time beside each baseline's."""
    p, timing = trial.proposal, trial.verdict.timing
    if timing is None:
        return None
    named = {"id": trial.id, "origin": p.origin, "name": p.name, "parent": p.parent, "clock": timing.kind}
    speeds = {name: asdict(speed) for name, speed in timing.speedups_x.items()}
    return named | {"us": timing.candidate_us, "baseline_us": dict(timing.baseline_us), "speedups_x": speeds}


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
