"""`kernrl optimize`: a faster form of a module, or of every module of a source, each with the file that was judged."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kernrl.config import OptimizeConfig
from kernrl.config.optimize import NO_MODEL
from kernrl.console import Result, log
from kernrl.errors import UsageError
from kernrl.files import next_folder, replace_file
from kernrl.optimization.one_task import CANDIDATES, Settings, optimize_task
from kernrl.optimization.proposals import Model, from_disk
from kernrl.optimization.trials import Progress
from kernrl.reports.kernelbench import write_kernelbench
from kernrl.reports.optimization_page import render, table_row
from kernrl.runs.run_directory import RunDirectory, read_lines
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import parse_columns
from kernrl.tasks.task import Task
from kernrl.verifier.verifier import HardenedVerifier

INTERRUPTED = 130
MAY_CHANGE = ("budget", "candidates", "keep_tie")
"""Settings that may differ on --resume."""


def run(config: OptimizeConfig) -> Result:
    """Optimise one task, or several.

    Raises:
        UsageError: Nothing of that name, a module that cannot be lifted, an output folder in use.
    """
    tasks = read_tasks(config)
    directory = RunDirectory.open(
        config.output or next_folder(Path("checkpoints"), "optimize"), config, resume=config.resume, may_change=MAY_CHANGE
    )
    more = from_disk(config.from_run, tasks) if config.from_run else {}
    # what a search drops when its time is over may end as a warning, which nobody can act on
    logging.getLogger("kernrl.verifier").setLevel(logging.ERROR)
    with ExitStack() as stack:
        verifier = stack.enter_context(HardenedVerifier(config.judging))
        model = Model(config, verifier) if config.model != NO_MODEL else None
        if model:
            stack.callback(model.close)

        def settings_for(task: Task, show: Callable[[Progress], None]) -> Settings:
            found = more.get(task.id, ())
            return Settings(config.candidates, config.budget_s, config.keep_tie, model, found, show)

        if len(tasks) == 1:
            with live_line(tasks[0].id) as show:
                found = optimize_task(tasks[0], verifier, settings_for(tasks[0], show), directory.path)
            return _one(found.results, directory.path, found.interrupted)
        return _many(tasks, verifier, settings_for, directory.path)


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
    return Result(data, f"{results['sentence']}\n{written}", INTERRUPTED if interrupted else 0)


# --- many ------------------------------------------------------------------------------------------------------------


def _many(tasks: Sequence[Task], verifier: HardenedVerifier, settings_for: Callable[..., Settings], folder: Path) -> Result:
    """One folder a task, a table, a page, and KernelBench's layout. A task with results is not searched again."""
    results: list[dict[str, Any]] = []
    interrupted = False
    for number, task in enumerate(tasks, start=1):
        place = folder / "tasks" / re.sub(r"[^\w.-]", "_", task.id)
        place.mkdir(parents=True, exist_ok=True)
        kept = _finished(place)
        if kept is None:
            with live_line(f"{number}/{len(tasks)} {task.id}") as show:
                try:
                    found = optimize_task(task, verifier, settings_for(task, show), place)
                    kept, interrupted = found.results, found.interrupted
                except UsageError as error:  # of this task alone
                    kept = unusable(task, str(error))
                except KeyboardInterrupt:
                    interrupted = True
                    break
            if not interrupted:
                log.print(kept["sentence"], markup=False, highlight=False, soft_wrap=True)
        results.append(kept)
        if interrupted:
            (place / "results.json").unlink(missing_ok=True)  # --resume goes on with this one
            break
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


def _finished(place: Path) -> dict[str, Any] | None:
    try:
        return json.loads((place / "results.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write_many(tasks: Sequence[Task], results: Sequence[dict[str, Any]], folder: Path) -> None:
    """The page of all, the figures of all, and the winners as KernelBench would have left them."""
    by_id = {task.id: task for task in tasks}
    places = {r["task"]: folder / "tasks" / re.sub(r"[^\w.-]", "_", r["task"]) for r in results}
    rows = {task_id: read_lines(place / CANDIDATES) for task_id, place in places.items()}
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
    """A line on stderr that says how the search goes; nothing under --quiet or where stderr is no terminal."""
    if log.quiet or not log.is_terminal:
        yield lambda progress: None
        return
    with log.status(Text(f"{name}: reading the module")) as status:
        yield lambda progress: status.update(Text(f"{name}: {progress_words(progress)}"))


def progress_words(progress: Progress) -> str:
    """`best 1.43x (fused-rows); 12 tried, 10 judged, 9 correct; 71 s left`."""
    best = progress.best
    timing = best.verdict.timing if best else None
    modelled = " modelled" if timing and timing.kind == "modelled" else ""
    said = f"best {best.ratio:.2f}x{modelled} ({best.proposal.name})" if best and best.ratio else "nothing right yet"
    counts = f"{progress.tried} tried, {progress.judged} judged, {progress.correct} correct"
    return f"{said}; {counts}; {max(0.0, progress.budget_s - progress.spent_s):.0f} s left"
