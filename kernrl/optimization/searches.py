"""The searches of a run, one a task: side by side where there are several, and once more after training a model on them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from kernrl.config import OptimizeConfig
from kernrl.console import log
from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.optimization.earlier import finished, judged_under
from kernrl.optimization.live_line import LiveLine
from kernrl.optimization.one_task import Settings, TaskSearch
from kernrl.optimization.search.budget import Budget, TooSmallBudgetError
from kernrl.optimization.search.judging import Judges, tasks_at_once
from kernrl.optimization.search.proposals import Model
from kernrl.optimization.search.trials import Proposal
from kernrl.tasks.task import Task
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.verdict import Rejection, Verdict

FIRST_SHARE, TRAINING_SHARE = 0.4, 0.6
"""Under --improve: of the budget, the most that the first round takes; of the rest, what the training takes."""

Train = Callable[[Any, Any], object]
"""A stage's `run`."""


class Searches:
    """The searches of a run, and its results by task id."""

    def __init__(
        self,
        config: OptimizeConfig,
        judges: Judges,
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
        self.config, self.judges, self.folder, self.more, self.model = config, judges, folder, more, model
        self.tasks, self.budget = tasks, budget
        self.results: dict[str, dict[str, Any]] = {}
        self.open: list[TaskSearch] = []
        """Those of which the results are not written yet."""
        self.interrupted = False
        self._begun: list[Budget] = []

    @property
    def at_once(self) -> int:
        """Tasks that are searched side by side."""
        return min(len(self.tasks), self.config.tasks_at_once or tasks_at_once(self.judges.verifier))

    def place(self, task: Task) -> Path:
        """Folder of a task's files."""
        return place_of(self.folder, task) if len(self.tasks) > 1 else self.folder

    # --- the first round ---------------------------------------------------------------------------------------------

    def first_rounds(self) -> None:
        """Search each task once. One that has results is left alone; with `--improve`, none is written yet."""
        if len(self.tasks) == 1:
            line = LiveLine()
            with line.shown():
                self._search(self.tasks[0], line)
            return
        self.judges.warm_up()  # in no task's time
        waiting = self._without_finished()
        line = LiveLine(len(waiting))
        with line.shown(), ThreadPoolExecutor(self.at_once, thread_name_prefix="search") as pool:
            running = dict[Future[None], Task]()
            try:
                running |= {pool.submit(self._search, task, line): task for task in waiting}
                for future in as_completed(running):
                    self._ended(running[future], future)
            except KeyboardInterrupt:
                self._stop(running)
            except BaseException:
                self._stop(running)
                raise
        order = {task.id: number for number, task in enumerate(self.tasks)}
        self.open.sort(key=lambda search: order[search.task.id])

    def _without_finished(self) -> list[Task]:
        """The tasks that have no results yet which still hold."""
        verifier, improve = self.judges.verifier, bool(self.config.improve)
        for task in self.tasks:
            found = finished(self.place(task), judged_under(task, verifier), improve=improve)
            if found is not None:
                self.results[task.id] = found
        return [task for task in self.tasks if task.id not in self.results]

    def _search(self, task: Task, line: LiveLine) -> None:
        """Search one task, and write its files unless another round follows."""
        last = self.config.improve is None
        share = 1.0 if last else FIRST_SHARE
        budget = self.budget.part(share) if len(self.tasks) == 1 else Budget(share * self.config.budget_s)
        self._begun.append(budget)
        place = self.place(task)
        place.mkdir(parents=True, exist_ok=True)
        show, more = line.begin(task.id), self.more.get(task.id, ())
        faster = False
        try:
            if self.interrupted:
                return
            settings = Settings(
                self.config.candidates,
                self.config.keep_tie,
                self.model,
                more,
                show,
                self.config.source if len(self.tasks) == 1 else f"{self.config.source}::{task.id}",
                tasks_at_once=self.at_once,
                algebra=self.config.algebra,
            )
            search = TaskSearch(task, self.judges, settings, place, budget)
            self.open.append(search)
            try:
                search.first_round(last=last)
            except UsageError:
                self.open.remove(search)
                raise
            self.interrupted |= search.search.ended == "interrupted"
            if last:
                faster = self._write(search)
        finally:
            line.end(task.id, faster)

    def _ended(self, task: Task, future: Future[None]) -> None:
        """Take note of a task that cannot be searched. Raises whatever else went wrong."""
        try:
            future.result()
        except UsageError as error:  # of this task alone
            if self.interrupted:
                return  # it was stopped while it was read
            self.results[task.id] = unusable(task, str(error)) | {"under": judged_under(task, self.judges.verifier)}
            if not isinstance(error, TooSmallBudgetError):  # which --resume tries again
                replace_file(self.place(task) / "results.json", json.dumps(self.results[task.id], indent=2))
            log.print(str(error), markup=False, highlight=False, soft_wrap=True)

    def _stop(self, running: Iterable[Future[None]]) -> None:
        """End the searches under way, and begin no other."""
        self.interrupted = True
        for future in running:
            future.cancel()
        for budget in self._begun:
            budget.stop()

    # --- with a model that is trained ----------------------------------------------------------------------------------

    def improve(self, train: Train) -> None:
        """Train the model on the tasks in hand, and search each of them once more. Ctrl-C ends it, and keeps what was found."""
        from kernrl.optimization.improve import improve, keep

        by_id = {search.task.id: search for search in self.open}
        if not by_id:
            return
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
            verifier = self.judges.verifier
            model, said = improve(tasks, self.config, verifier, self.folder, training, train, note, rate)
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
                improved = Model(changed, self.judges.verifier, "improved")
                stack.callback(improved.close)
            for number, search in enumerate(self.open):
                search.improved = said
                line = LiveLine()
                with line.shown():
                    search.second_round(improved, self.budget.rest(len(self.open) - number), line.begin(search.task.id))
                if search.search.ended == "interrupted":
                    raise KeyboardInterrupt

    # --- files -------------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write the files of the searches in hand."""
        for search in list(self.open):
            self._write(search)

    def _write(self, search: TaskSearch) -> bool:
        """Write a search's files; returns whether anything is faster."""
        found = search.write()
        self.results[search.task.id] = found.results
        self.open.remove(search)
        if len(self.tasks) > 1:
            log.print(found.results["sentence"], markup=False, highlight=False, soft_wrap=True)
            if found.interrupted or (self.interrupted and self.config.improve):
                (search.folder / "results.json").unlink(missing_ok=True)  # --resume goes on with this one
        return bool(found.results["faster"])


def place_of(folder: Path, task: Task) -> Path:
    """Folder of one of several tasks."""
    return folder / "tasks" / re.sub(r"[^\w.-]", "_", task.id)


def unusable(task: Task, sentence: str) -> dict[str, Any]:
    """Results of a task that cannot be searched."""
    counts: dict[str, Any] = {"tried": 0, "judged": 0, "correct": 0, "spent_s": 0.0, "budget_s": 0.0, "first_right_s": None}
    rest = {
        "device": None,
        "best": None,
        "ranking": [],
        "by_origin": {},
        "regret": {},
        "finals": {},
        "versions": {},
        "graph": None,
    }
    said = {
        "task": task.id,
        "sentence": sentence,
        "faster": False,
        "clock": "none",
        "ended": "not searched",
        "failed": False,
        "file": None,
    }
    return said | counts | rest
