"""`kernrl tasks`: make tasks, and look at them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from kernrl import __version__, console
from kernrl.config import CheckConfig, GenerateConfig, ListConfig, ShowConfig, SourceConfig, StatsConfig, VerifierConfig
from kernrl.console import Result, counted
from kernrl.errors import UsageError
from kernrl.files import atomic_write, new_folder
from kernrl.tasks.constants import sizes_in_words
from kernrl.tasks.loaders import LoadedTasks, load_tasks
from kernrl.tasks.rows import parse_columns, task_to_row, write_tasks
from kernrl.tasks.task import Task

CELL_FRAME = 3
"""Characters that a cell takes besides its text, in a table with lines."""

MOST_ROWS = 30
"""Longest table of counts shown to a person."""


def load(config: SourceConfig) -> LoadedTasks:
    """Load a command's tasks, and report on stderr what could not be read."""
    loaded = load_tasks(
        config.source,
        split=config.split,
        revision=config.revision,
        columns=parse_columns(config.map),
        limit=config.limit,
    )
    for problem in loaded.problems:
        console.log.print(f"Skipped: {problem}", markup=False, highlight=False, soft_wrap=True)
    return loaded


def generate(config: GenerateConfig) -> Result:
    """Write `tasks.jsonl`, and `config.json` with how it was made, into a new folder."""
    from kernrl.tasks.grammar.generate import generate_tasks

    folder = new_folder(config.out, "--out")
    tasks = generate_tasks(
        level=config.level,
        count=config.count,
        seed=config.seed,
        split=config.split,
        workers=config.workers or len(os.sched_getaffinity(0)),
        max_bytes=config.max_bytes,
        precision=config.precision,
    )
    path = folder / "tasks.jsonl"
    try:
        with console.progress() as bar:
            written = write_tasks(path, bar.track(tasks, total=config.count, description="tasks"))
    except BaseException:
        folder.rmdir()  # the file was never there, and the same command is to work again
        raise
    with atomic_write(folder / "config.json") as file:
        made_by = {"kernrl": __version__, "command": "tasks generate", "config": config.model_dump(mode="json")}
        file.write(json.dumps(made_by, indent=2) + "\n")
    return Result({"path": str(path), "tasks": written}, f"{counted(written, 'task')} in {path}")


def list_(config: ListConfig) -> Result:
    """One line a task; what no task has is left out."""
    tasks = load(config).tasks
    cells: dict[str, list[Any]] = {
        "id": [task.id for task in tasks],
        "family": [task.family for task in tasks],
        "composition": [Text(" → ".join(task.composition), no_wrap=True, overflow="ellipsis") for task in tasks],
        "split": [task.split or "" for task in tasks],
        "solutions": [str(len(task.solutions)) for task in tasks],
    }
    cells = {name: column for name, column in cells.items() if any(column)}
    table = table_of(*cells, no_wrap=True)
    for column in table.columns:  # a narrow terminal takes its room from compositions, whose cells end in `…` then
        column.no_wrap = column.header != "composition"
    for row in zip(*cells.values(), strict=True):
        table.add_row(*row)
    data = [
        {"id": t.id, "level": t.level, "name": t.name, "family": t.family, "composition": list(t.composition), "split": t.split}
        | {"solutions": [s.style for s in t.solutions]}
        for t in tasks
    ]
    return Result(data, table)


def show(config: ShowConfig) -> Result:
    """The first task of the source: its reference beside a solution, or the prompt a model is given."""
    task = load(config.model_copy(update={"limit": 1})).tasks[0]
    if config.prompt:
        from kernrl.policy.pairs import task_messages
        from kernrl.service.client import gpu_judged_on

        gpu = gpu_judged_on(VerifierConfig(target=config.target))
        messages = task_messages(task, "chat", gpu=gpu, facts=config.facts)
        shown = "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)
        return Result({"id": task.id, "messages": messages}, shown)
    solution = next((s for s in task.solutions if config.style in (None, s.style)), None)
    if config.style and solution is None:
        styles = ", ".join(s.style for s in task.solutions) or "none"
        raise UsageError(f"--style: {task.id} has no solution of style {config.style!r}; it has {styles}.")
    sources = [("reference (PyTorch)", task.pytorch_code)]
    if solution:
        sources.append((f"solution ({solution.style})", solution.triton_code))
    others = [s.style for s in task.solutions if s is not solution]
    parts: list[RenderableType] = [Text(_heading(task), style="bold"), _side_by_side(sources)]
    if others:
        parts.append(Text(f"other styles: {', '.join(others)}", style="dim"))
    return Result(task_to_row(task), Group(*parts))


def stats(config: StatsConfig) -> Result:
    """Counts and lengths over a source."""
    tasks = load(config).tasks
    counts: dict[str, Counter[str]] = {
        "family": Counter(t.family or "-" for t in tasks),
        "depth": Counter(str(len(t.composition)) for t in tasks),
        "split": Counter(t.split or "-" for t in tasks),
        "op": Counter(op for t in tasks for op in t.composition),
        "style": Counter(s.style for t in tasks for s in t.solutions),
    }
    lengths = {
        "pytorch_code": _spread(len(t.pytorch_code) for t in tasks),
        "triton_code": _spread(len(s.triton_code) for t in tasks for s in t.solutions),
    }
    pairs = sum(len(t.solutions) for t in tasks)
    compositions = len({t.composition for t in tasks})
    data = {"tasks": len(tasks), "compositions": compositions, "pairs": pairs, "characters": lengths}
    said = f"{counted(len(tasks), 'task')}, {counted(compositions, 'composition')}, {counted(pairs, 'solution')}"
    parts: list[RenderableType] = [Text(said, style="bold")]
    parts += [_count_table(name, counter) for name, counter in counts.items() if counter]
    parts.append(_length_table(lengths))
    return Result(data | {name: dict(counter.most_common()) for name, counter in counts.items()}, Group(*parts))


def check(config: CheckConfig) -> Result:
    """Run every reference, and say at which input sets it is asked; exit 1 when one of them cannot be used."""
    tasks = load(config).tasks
    with console.progress() as bar, ThreadPoolExecutor(2) as pool:
        folder = VerifierConfig().cache_folder
        checks = pool.map(lambda task: _checked(task, config.timeout_s, folder), tasks)
        results = list(bar.track(checks, total=len(tasks), description="checking references"))
    problems = [result for result in results if isinstance(result, str)]
    if len(tasks) == 1 and problems:
        raise UsageError(problems[0])
    usable = [result for result in results if isinstance(result, Task)]
    table = table_of("task", "set", "", "constants")
    for task in usable:
        for input_set in task.input_sets[1:]:
            origin = "derived" if input_set.derived else "stated"
            table.add_row(task.id, input_set.name, origin, sizes_in_words(task.pytorch_code, input_set.constants))
        if len(task.input_sets) == 1:
            table.add_row(task.id, task.input_sets[0].name, "the only one", "")
    data = {
        "tasks": len(tasks),
        "problems": problems,
        "input_sets": {task.id: task_to_row(task)["input_sets"] for task in usable},
    }
    summary = f"{len(usable)} of {len(tasks)} references can be used"
    parts: list[RenderableType] = [*([table] if usable else []), *map(Text, problems), Text(summary)]
    return Result(data, Group(*parts), exit_code=1 if problems else 0)


def _checked(task: Task, timeout_s: float, cache_dir: Path | None) -> Task | str:
    """The task with its input sets, or why it cannot be used."""
    from kernrl.tasks.task_check import check_task, in_child

    try:
        task = check_task(task, timeout_s=timeout_s, cache_dir=cache_dir)
        in_child(_trace, task, timeout_s)
    except UsageError as error:
        return str(error)
    return task


def _trace(task: Task) -> None:
    """Trace the reference as `verify` does first. Raises UsageError where it cannot."""
    from kernrl.verifier.base.devices import device_for
    from kernrl.verifier.trace.reference_spec import reference_plan

    device = device_for("H200")
    assert device is not None
    reference_plan(task, task.input_sets[0], task.precision, device.arch)


def _heading(task: Task) -> str:
    composition = " → ".join(task.composition)
    return "  ".join(part for part in (task.id, f"level {task.level}", composition, task.split) if part)


def _side_by_side(sources: Sequence[tuple[str, str]]) -> RenderableType:
    """Sources in columns where every line of them fits, or one after the other."""
    widths = [max(map(len, (title, *text.splitlines()))) for title, text in sources]
    code = [console.Code(text) for _, text in sources]
    if len(code) == 1 or not console.out.is_terminal or console.out.width < sum(width + CELL_FRAME for width in widths) + 1:
        return Group(*(part for (title, _), one in zip(sources, code, strict=True) for part in (Rule(title), one)))
    grid = Table()
    for (title, _), width in zip(sources, widths, strict=True):
        grid.add_column(title, width=width)
    grid.add_row(*code)
    return grid


def table_of(*columns: str, no_wrap: bool = False) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=no_wrap)
    return table


def _count_table(name: str, counter: Counter[str]) -> Table:
    table = table_of(name, "count", "share")
    total = sum(counter.values())
    ordered = sorted(counter.items(), key=lambda row: int(row[0])) if name == "depth" else counter.most_common()
    for value, count in ordered[:MOST_ROWS]:
        table.add_row(value, str(count), f"{count / total:.1%}")
    if len(counter) > MOST_ROWS:
        table.add_row(f"and {len(counter) - MOST_ROWS} more; --json has them", "", "")
    return table


def _spread(lengths: Iterable[int]) -> dict[str, Any]:
    ordered = sorted(lengths)
    return {"min": ordered[0], "median": median(ordered), "max": ordered[-1]} if ordered else {}


def _length_table(lengths: dict[str, dict[str, Any]]) -> Table:
    table = table_of("characters", "min", "median", "max")
    for name, spread in lengths.items():
        if spread:
            table.add_row(name, *(f"{spread[key]:g}" for key in ("min", "median", "max")))
    return table
