"""`kernrl optimize`: a faster form of a module, or of every module of a source, each with the file that was judged."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from kernrl.config import OptimizeConfig
from kernrl.config.optimize import NO_MODEL
from kernrl.console import Lines, Prose, Result, Whole, counted, log
from kernrl.errors import InfrastructureError, UsageError
from kernrl.files import next_folder, replace_file, require_writable_folder
from kernrl.optimization.earlier import CANDIDATES
from kernrl.optimization.search.budget import Budget, TooSmallBudgetError
from kernrl.optimization.search.judging import Judges
from kernrl.optimization.search.proposals import Model, from_disk
from kernrl.optimization.searches import Searches, place_of
from kernrl.reports.kernelbench import write_kernelbench
from kernrl.reports.optimization_page import render, table_head, table_rows
from kernrl.runs.run_directory import RunDirectory, read_lines
from kernrl.signals import INTERRUPTED
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.rows import parse_columns
from kernrl.tasks.task import Task
from kernrl.user_code import is_import_path
from kernrl.verifier.verifier import HardenedVerifier


def run(config: OptimizeConfig) -> Result:
    """Optimise one task, or several.

    Raises:
        UsageError: Nothing of that name, a module that cannot be lifted, an output folder in use, a budget too small.
    """
    budget = Budget(config.budget_s)
    if config.engine == "server":
        _require_server(config)
    tasks = read_tasks(config)
    if config.keep_model:
        if config.keep_model.exists():
            raise UsageError(f"--keep-model: {config.keep_model} is there already; name a new folder.")
        require_writable_folder(config.keep_model, "--keep-model")
    directory = RunDirectory.open(config.output or next_folder(Path("checkpoints"), "optimize"), config, resume=config.resume)
    more = from_disk(config.from_run, tasks) if config.from_run else {}
    # what a search drops when its time is over may end as a warning, which nobody can act on
    logging.getLogger("kernrl.verifier").setLevel(logging.ERROR)
    with ExitStack() as stack:
        verifier = stack.enter_context(HardenedVerifier(config.judging))
        judges, model = stack.enter_context(Judges(verifier)), None
        if config.model != NO_MODEL:
            judges.start_ahead()
            model = budget.within(f"loading {config.model}", lambda: Model(config, verifier))
            stack.callback(model.close)
        if len(tasks) > 1:
            budget = Budget(config.budget_s * len(tasks))
        searches = Searches(config, judges, directory.path, more, model, tasks, budget)
        try:
            searches.first_rounds()
        except TooSmallBudgetError as error:
            if read_lines(directory.path / CANDIDATES):
                raise TooSmallBudgetError(f"{error} What was found before stands: --resume with more goes on.") from None
            raise
        if config.improve and not searches.interrupted:
            searches.improve(_training_stage(config))
        searches.write()
    if len(tasks) == 1:
        _write_winners(directory.path, tasks, list(searches.results.values()))
        return _one(searches.results[tasks[0].id], directory.path, searches.interrupted)
    return _many(tasks, [r for t in tasks if (r := searches.results.get(t.id))], directory.path, searches.interrupted)


def _training_stage(config: OptimizeConfig) -> Callable[[Any, Any], object]:
    """What trains; imported here, since it takes seconds to load."""
    from kernrl.stages import best_of_n, reinforce

    return {"best-of-n": best_of_n.run, "reinforce": reinforce.run}[str(config.improve)]


def _require_server(config: OptimizeConfig) -> None:
    """Ask the server whether it is there, before anything is loaded or written."""
    from kernrl.http_client import Server
    from kernrl.rollouts.engines.dialects import ask_server_info

    assert config.server_url
    ask_server_info(Server(config.server_url, timeout_s=config.server_timeout_s))


def read_tasks(config: OptimizeConfig) -> list[Task]:
    """The tasks of the source: those of a class, or those that a function of the user's returns, or those of a file."""
    if is_import_path(config.source) and not Path(config.source).exists():
        from kernrl.optimization.python_class import is_class, task_of_class

        if config.inputs:
            return [task_of_class(config.source, config.inputs, config.init)]
        if is_class(config.source):
            raise UsageError(f"{config.source}: say what its forward takes, such as --inputs 'x=float32[64,128]'.")
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
    tried = f"; what was tried: {folder / 'report.html'}" if results["tried"] else ""
    written = f"{folder / 'best.py'}" if results["file"] else f"no file is written{tried}"
    data = {"output": str(folder), **{k: v for k, v in results.items() if k != "graph"}}
    said = Prose(f"{results['sentence']}\n{written}{_goes_on(folder, interrupted)}")
    view = Group(Whole(_best_few(results["ranking"])), Text(), Lines(said)) if results["ranking"] else said
    return Result(data, view, _exit_code([results], interrupted))


def _goes_on(folder: Path, interrupted: bool) -> str:
    return f"\nInterrupted: --output {folder} --resume goes on." if interrupted else ""


def _exit_code(results: Sequence[dict[str, Any]], interrupted: bool) -> int:
    """0 also where nothing is faster; 3 where the verifier failed on every candidate of every task that was searched."""
    if interrupted:
        return INTERRUPTED
    searched = [r for r in results if r["tried"]]
    return InfrastructureError.exit_code if searched and all(r["failed"] for r in searched) else 0


def _best_few(ranking: Sequence[dict[str, Any]]) -> Table:
    """The best candidates beside each baseline."""
    table = Table(box=None, pad_edge=False)
    table.add_column("candidate")
    baselines = dict.fromkeys(name for row in ranking for name in row["speedups_x"])
    us = "modelled µs" if any(row["clock"] == "modelled" for row in ranking) else "µs"
    for name in (us, *baselines):
        table.add_column(name, justify="right")
    for row in ranking:
        speeds = [f"{row['speedups_x'][name]['value']:.2f}×" if name in row["speedups_x"] else "" for name in baselines]
        origin = f" (from {row['parent']})" if row["parent"] else ""
        table.add_row(f"{row['id']}: {row['name']}{origin}", f"{row['us']:.1f}", *speeds)
    return table


# --- many ------------------------------------------------------------------------------------------------------------


def _many(tasks: Sequence[Task], results: Sequence[dict[str, Any]], folder: Path, interrupted: bool) -> Result:
    """A table, a page, and KernelBench's layout."""
    _write_many(tasks, results, folder)
    table = Table(box=None, pad_edge=False)
    for name in table_head(results):
        table.add_column(name)
    for row in table_rows(results):
        table.add_row(*map(Text, row))
    more = _goes_on(folder, interrupted)
    faster = sum(result["faster"] for result in results)
    modelled = "; * by the roofline model: nothing was measured" if any(r["clock"] == "modelled" for r in results) else ""
    said = Prose(f"{faster} of {len(results)} faster than the first baseline{modelled}\n{folder / 'report.html'}{more}")
    data = {"output": str(folder), "tasks": [{k: v for k, v in r.items() if k != "graph"} for r in results]}
    return Result(data, Group(Whole(table), Lines(said)), _exit_code(results, interrupted))


def _write_many(tasks: Sequence[Task], results: Sequence[dict[str, Any]], folder: Path) -> None:
    """The page of all, the figures of all, and the winners as KernelBench would have left them."""
    by_id = {task.id: task for task in tasks}
    rows = {r["task"]: read_lines(place_of(folder, by_id[r["task"]]) / CANDIDATES) for r in results}
    replace_file(folder / "report.html", render(results, rows, counted(len(results), "module")))
    replace_file(folder / "results.json", json.dumps(list(results), indent=2))
    _write_winners(folder, tasks, results)


def _write_winners(folder: Path, tasks: Sequence[Task], results: Sequence[dict[str, Any]]) -> None:
    """The best of each task as KernelBench would have left it."""
    winners = [
        {"task": r["task"], "member": 0, "text": r["best"]["source"], "verdict": r["best"]["verdict"]}
        for r in results
        if r["best"]
    ]
    write_kernelbench(folder / "kernelbench", tasks, winners)
