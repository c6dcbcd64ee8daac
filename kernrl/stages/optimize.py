"""`kernrl optimize`: a faster form of a module, or of every module of a source, each with the file that was judged."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kernrl.config import OptimizeConfig
from kernrl.config.optimize import NO_MODEL
from kernrl.console import Prose, Result, log, now_and_then
from kernrl.errors import UsageError
from kernrl.files import next_folder, replace_file
from kernrl.optimization.budget import Budget
from kernrl.optimization.improve import improve, keep
from kernrl.optimization.one_task import CANDIDATES, Settings, TaskSearch
from kernrl.optimization.proposals import Model, from_disk
from kernrl.optimization.trials import Progress, Proposal
from kernrl.reports.kernelbench import write_kernelbench
from kernrl.reports.optimization_page import render, table_row
from kernrl.runs.run_directory import RunDirectory, read_lines
from kernrl.stages import best_of_n, reinforce
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import parse_columns
from kernrl.tasks.task import Task
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.verdict import Rejection, Verdict
from kernrl.verifier.verifier import HardenedVerifier

INTERRUPTED = 130
MAY_CHANGE = ("budget", "candidates", "keep_tie", "improve", "keep_model")
"""Settings that may differ on --resume."""

FIRST_SHARE, TRAINING_SHARE = 0.4, 0.6
"""Under --improve: of the budget, the most that the first round takes; of the rest, what the training takes."""


def run(config: OptimizeConfig) -> Result:
    """Optimise one task, or several.

    Raises:
        UsageError: Nothing of that name, a module that cannot be lifted, an output folder in use, a budget too small.
    """
    budget = Budget(config.budget_s)
    tasks = read_tasks(config)
    if config.keep_model and config.keep_model.exists():
        raise UsageError(f"--keep-model: {config.keep_model} is there already; name a new folder.")
    directory = RunDirectory.open(
        config.output or next_folder(Path("checkpoints"), "optimize"), config, resume=config.resume, may_change=MAY_CHANGE
    )
    more = from_disk(config.from_run, tasks) if config.from_run else {}
    # what a search drops when its time is over may end as a warning, which nobody can act on
    logging.getLogger("kernrl.verifier").setLevel(logging.ERROR)
    with ExitStack() as stack:
        verifier = stack.enter_context(HardenedVerifier(config.judging))
        model = None
        if config.model != NO_MODEL:
            model = budget.within(f"loading {config.model}", lambda: Model(config, verifier))
            stack.callback(model.close)
        if len(tasks) > 1:
            verifier.evaluator.start()  # in no task's time
            budget = Budget(config.budget_s * len(tasks))
        searches = Searches(config, verifier, directory.path, more, model, tasks, budget)
        searches.first_rounds()
        if config.improve and not searches.interrupted:
            searches.improve()
        searches.write()
    if len(tasks) == 1:
        return _one(searches.results[tasks[0].id], directory.path, searches.interrupted)
    return _many(tasks, [r for t in tasks if (r := searches.results.get(t.id))], directory.path, searches.interrupted)


def read_tasks(config: OptimizeConfig) -> list[Task]:
    """The tasks of the source."""
    if re.fullmatch(r"[\w.]+:\w+", config.source) and not Path(config.source).exists():
        from kernrl.optimization.python_class import task_of_class

        if not config.inputs:
            raise UsageError(f"{config.source}: say what its forward takes, such as --inputs 'x=float32[64,128]'.")
        return [task_of_class(config.source, config.inputs, config.init)]
    if config.inputs or config.init:
        raise UsageError("--inputs and --init are for package.module:Class: a task has get_inputs and get_init_inputs.")
    loaded = load_tasks(
        config.source,
        split=config.split,
        revision=config.tasks_revision,
        columns=parse_columns(config.map),
        limit=config.limit,
    )
    for problem in loaded.problems:
        log.print(f"Skipped: {problem}", markup=False, highlight=False, soft_wrap=True)
    return list(loaded.tasks)


def _one(results: dict[str, Any], folder: Path, interrupted: bool) -> Result:
    written = f"{folder / 'best.py'}" if results["file"] else f"no file is written; what was tried: {folder / 'report.html'}"
    data = {"output": str(folder), **{k: v for k, v in results.items() if k != "graph"}}
    return Result(data, Prose(f"{results['sentence']}\n{written}"), INTERRUPTED if interrupted else 0)


# --- the searches ------------------------------------------------------------------------------------------------------


class Searches:
    """The searches of a run, one a task, and its results by task id."""

    def __init__(
        self,
        config: OptimizeConfig,
        verifier: HardenedVerifier,
        folder: Path,
        more: Mapping[str, Sequence[Proposal]],
        model: Model | None,
        tasks: Sequence[Task],
        budget: Budget,
    ):
        """
        Args:
            budget: For all tasks together.
        """
        self.config, self.verifier, self.folder, self.more, self.model = config, verifier, folder, more, model
        self.tasks, self.budget = tasks, budget
        self.results: dict[str, dict[str, Any]] = {}
        self.open: list[TaskSearch] = []
        """Those of which the results are not written yet."""
        self.interrupted = False

    def place(self, task: Task) -> Path:
        """Folder of a task's files."""
        return place_of(self.folder, task) if len(self.tasks) > 1 else self.folder

    def first_rounds(self) -> None:
        """Search each task once. One that has results is left alone; with `--improve`, none is written yet."""
        last = self.config.improve is None
        for number, task in enumerate(self.tasks, start=1):
            place = self.place(task)
            place.mkdir(parents=True, exist_ok=True)
            kept = _finished(place, self.config) if len(self.tasks) > 1 else None
            if kept is not None:
                self.results[task.id] = kept
                continue
            name = f"{number}/{len(self.tasks)} {task.id}" if len(self.tasks) > 1 else task.id
            try:
                with live_line(name) as show:
                    found = TaskSearch(task, self.verifier, self._settings(task, show), place, self._first_budget(last))
                    self.open.append(found)
                    found.first_round(last=last)
                self.interrupted = found.search.ended == "interrupted"
                if last:
                    self.write()
            except UsageError as error:  # of this task alone
                if len(self.tasks) == 1:
                    raise
                self.open = [search for search in self.open if search.task.id != task.id]
                self.results[task.id] = unusable(task, str(error))
                log.print(str(error), markup=False, highlight=False, soft_wrap=True)
            except KeyboardInterrupt:
                if len(self.tasks) == 1:
                    raise
                self.interrupted = True
            if self.interrupted:
                return

    def _first_budget(self, last: bool) -> Budget:
        share = 1.0 if last else FIRST_SHARE
        return self.budget.part(share) if len(self.tasks) == 1 else Budget(share * self.config.budget_s)

    def _settings(self, task: Task, show: Callable[[Progress], None]) -> Settings:
        return Settings(self.config.candidates, self.config.keep_tie, self.model, self.more.get(task.id, ()), show)

    def improve(self) -> None:
        """Train the model on the tasks in hand, and search each of them once more. Ctrl-C ends it, and keeps what was found."""
        by_id = {search.task.id: search for search in self.open}
        if not by_id:
            return
        train = {"best-of-n": best_of_n.run, "reinforce": reinforce.run}[str(self.config.improve)]
        tasks = [search.task for search in self.open]
        training = self.budget.rest().part(TRAINING_SHARE)

        def note(task: Task, text: str, verdict: Verdict) -> None:
            parsed = parse_reply(text)
            if not isinstance(parsed, Rejection):
                by_id[task.id].search.add(
                    Proposal(parsed.source, "improved", f"{self.config.improve} of {self.config.model}"), verdict
                )

        rate = self.model.replies / self.model.sampling_s if self.model and self.model.replies else None
        try:
            model, said = improve(tasks, self.config, self.verifier, self.folder, training, train, note, rate)
            log.print(said, markup=False, highlight=False, soft_wrap=True)
            self._second_rounds(model, said)
            if model is not None:
                keep(model, self.config.keep_model)
        except KeyboardInterrupt:
            self.interrupted = True

    def _second_rounds(self, folder: Path | None, said: str) -> None:
        with ExitStack() as stack:
            improved = None
            if folder is not None:
                changed = self.config.model_copy(update={"model": str(folder), "revision": None})
                improved = Model(changed, self.verifier, "improved")
                stack.callback(improved.close)
            for number, search in enumerate(self.open):
                search.improved = said
                with live_line(search.task.id) as show:
                    search.second_round(improved, self.budget.rest(len(self.open) - number), show)
                if search.search.ended == "interrupted":
                    raise KeyboardInterrupt

    def write(self) -> None:
        """Write the files of the searches in hand."""
        for search in self.open:
            found = search.write()
            self.results[search.task.id] = found.results
            if len(self.tasks) > 1:
                log.print(found.results["sentence"], markup=False, highlight=False, soft_wrap=True)
                if self.interrupted:
                    (search.folder / "results.json").unlink(missing_ok=True)  # --resume goes on with this one
        self.open = []


# --- many ------------------------------------------------------------------------------------------------------------


def place_of(folder: Path, task: Task) -> Path:
    """Folder of one of several tasks."""
    return folder / "tasks" / re.sub(r"[^\w.-]", "_", task.id)


def _many(tasks: Sequence[Task], results: Sequence[dict[str, Any]], folder: Path, interrupted: bool) -> Result:
    """A table, a page, and KernelBench's layout."""
    _write_many(tasks, results, folder)
    table = Table(box=None, pad_edge=False)
    for name in ("task", "result", "eager", "compile", "origin", "correct", "time"):
        table.add_column(name)
    for result in results:
        table.add_row(*table_row(result))
    faster = sum(result["faster"] for result in results)
    modelled = "; * by the roofline model: nothing was measured" if any(r["clock"] == "modelled" for r in results) else ""
    said = Text(f"{faster} of {len(results)} faster than the first baseline{modelled}\n{folder / 'report.html'}")
    data = {"output": str(folder), "tasks": [{k: v for k, v in r.items() if k != "graph"} for r in results]}
    return Result(data, Group(table, said), INTERRUPTED if interrupted else 0)


def unusable(task: Task, sentence: str) -> dict[str, Any]:
    """Results of a task that cannot be searched."""
    counts: dict[str, Any] = {"tried": 0, "judged": 0, "correct": 0, "spent_s": 0.0, "budget_s": 0.0}
    rest = {"device": None, "best": None, "by_origin": {}, "regret": {}, "finals": {}, "versions": {}, "graph": None}
    said = {"task": task.id, "sentence": sentence, "faster": False, "clock": "none", "ended": "not searched", "file": None}
    return said | counts | rest


def _finished(place: Path, config: OptimizeConfig) -> dict[str, Any] | None:
    """The results of a task that is done, as far as the settings ask."""
    try:
        results = json.loads((place / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return results if not config.improve or results.get("improved") else None


def _write_many(tasks: Sequence[Task], results: Sequence[dict[str, Any]], folder: Path) -> None:
    """The page of all, the figures of all, and the winners as KernelBench would have left them."""
    by_id = {task.id: task for task in tasks}
    rows = {r["task"]: read_lines(place_of(folder, by_id[r["task"]]) / CANDIDATES) for r in results}
    replace_file(folder / "report.html", render(results, rows, f"{len(results)} modules"))
    replace_file(folder / "results.json", json.dumps(list(results), indent=2))
    winners = [
        {"task": r["task"], "member": 0, "text": r["best"]["source"], "verdict": r["best"]["verdict"]}
        for r in results
        if r["best"]
    ]
    write_kernelbench(folder / "kernelbench", list(by_id.values()), winners)


# --- the live line -----------------------------------------------------------------------------------------------------


@contextmanager
def live_line(name: str) -> Iterator[Callable[[Progress], None]]:
    """A line on stderr that says how the search goes; a line now and then where that cannot be redrawn; none under --quiet."""
    said = f"{name}: reading the module"
    shown = log.status(Text(said)) if log.redraws else nullcontext()

    def show(progress: Progress) -> None:
        nonlocal said
        said = f"{name}: {progress_words(progress)}"
        if status is not None:
            status.update(Text(said))

    with shown as status, now_and_then(lambda: said):
        yield show


def progress_words(progress: Progress) -> str:
    """`best 1.43x (fused-rows); 12 tried, 10 judged, 9 correct; 71 s left`."""
    best = progress.best
    timing = best.verdict.timing if best else None
    modelled = " modelled" if timing and timing.kind == "modelled" else ""
    said = f"best {best.ratio:.2f}x{modelled} ({best.proposal.name})" if best and best.ratio else "nothing right yet"
    counts = f"{progress.tried} tried, {progress.judged} judged, {progress.correct} correct"
    return f"{said}; {counts}; {max(0.0, progress.budget_s - progress.spent_s):.0f} s left"
