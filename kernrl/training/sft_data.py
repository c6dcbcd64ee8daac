"""The data of SFT: pairs from the generator, from tasks with worked solutions, or from a table in one of TRL's formats."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from kernrl.config import SftConfig
from kernrl.console import log
from kernrl.errors import UsageError
from kernrl.policy.pairs import PAIR_FIELDS, Pair, PromptStyle, UnusableRow, has_pair, row_pair, task_pairs
from kernrl.service.client import gpu_judged_on
from kernrl.tasks.grammar.generate import PRECISION, generate_tasks
from kernrl.tasks.loaders import Row, load_tasks, read_rows
from kernrl.tasks.prompt import PRECISIONS, read_template
from kernrl.tasks.rows import COLUMNS, BadRow, parse_columns
from kernrl.tasks.task import Task
from kernrl.tasks.worker_pool import worker_pool
from kernrl.training.lint_tasks import sound_tasks
from kernrl.training.session import askable
from kernrl.verifier.base.devices import DEFAULT_GPU, device_for

T = TypeVar("T")

FORMS = "`messages`, or `prompt` and `completion`"

USUAL_TASKS = 40_000
"""Generated tasks, if nothing says how many."""

ENDLESS = 10**9
"""Generated tasks where the time ends the run."""

FEW_TASKS = 100
"""Tasks whose facts take less time than a process that writes them takes to start."""

VALIDATION_TASKS = 256
"""Tasks for the validation loss of generated data; a tenth of the training tasks if that is fewer."""

VALIDATION_EVERY = 50
"""Of data without a validation split, rows 0, 50, 100, … are for validation."""

SPLITS = {"train": ("train",), "validation": ("validation", "test", "eval")}
"""Our splits → names they have in other people's data."""


HELD_OUT = "heldout"
"""Split that is never trained on."""


def read_pairs(config: SftConfig, split: str) -> Iterator[Pair]:
    """The pairs of the `train` or `validation` split of `--data`.

    Raises:
        UsageError: nothing usable is there.
    """
    nano = config.prompt == "nano" or (config.prompt is None and config.model == "nano")
    style = ("graph" if new_form(config) == "graph" else "nano") if nano else "chat"
    template = read_template(config.prompt_template) if config.prompt_template else ""
    if config.data == "generated" and style == "graph":
        return _generated_graphs(config, split)
    if config.data == "generated":
        return pairs_asked(_generated(config, split), config, style, template)
    columns = parse_columns(config.map, (*COLUMNS, *PAIR_FIELDS))
    if config.data_revision and Path(config.data).exists():
        raise UsageError(f"--data-revision: {config.data} is not a dataset of the hub; leave it out.")
    rows = list(read_rows(config.data, revision=config.data_revision) or ())
    _require_columns(config, rows, columns)
    if any(has_pair(row, columns) for _, row in rows if not isinstance(row, BadRow)):
        return iter(_part(_table_pairs(config, rows, columns, tell=split == "train"), config, split))
    # no row in TRL's forms: then they are tasks, whose solutions are the answers
    tasks = askable(_part(_tasks(config, columns, tell=split == "train"), config, split), style)
    return pairs_asked(tasks, config, style, template)


def pairs_asked(tasks: Iterable[Task], config: SftConfig, style: PromptStyle, template: str) -> Iterator[Pair]:
    """The pairs of tasks; the facts of many are written in processes of their own."""
    gpu = gpu_judged_on(config.verifier) if config.name_gpu and style == "chat" else ""
    if config.facts and style == "chat" and len(tasks := list(tasks)) >= FEW_TASKS:
        with worker_pool(_workers(config)) as over:
            yield from task_pairs(tasks, style, template=template, gpu=gpu, facts=True, over=over)
    else:
        yield from task_pairs(tasks, style, template=template, gpu=gpu, facts=config.facts)


def _workers(config: SftConfig) -> int:
    return config.workers or len(os.sched_getaffinity(0))


def _require_columns(config: SftConfig, rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    """Refuse a --map to a column that no row has: a misspelt name would look like data without pairs."""
    there = {name: None for _, row in rows if not isinstance(row, BadRow) for name in row}
    if there and (absent := [f"{field}={column}" for field, column in columns.items() if column not in there]):
        raise UsageError(f"--map {absent[0]}: no row of {config.data} has that column; there are {', '.join(there)}.")


def _part(items: Sequence[tuple[str, T]], config: SftConfig, split: str) -> list[T]:
    """The items of a split, by the items' own split names; without a named validation split, by `VALIDATION_EVERY`."""
    if any(name in SPLITS["validation"] for name, _ in items):
        part = [item for name, item in items if name in SPLITS[split]]
    else:
        free = [item for name, item in items if name != HELD_OUT]
        part = [item for n, item in enumerate(free) if (n % VALIDATION_EVERY == 0) == (split == "validation")]
    if not part:
        names = ", ".join(sorted({name or "not named" for name, _ in items}))
        raise UsageError(
            f"--data {config.data}: none of its {len(items)} usable rows is left for {split} (splits: {names}); "
            "give at least one row to learn from and one to validate on."
        )
    return part


def new_form(config: SftConfig) -> Literal["graph", "program"]:
    """The form of a new nano: other people's pairs are of whole files."""
    return config.form or ("graph" if config.data == "generated" else "program")


def streamed(config: SftConfig) -> bool:
    """Whether pairs are made while training goes on."""
    return bool(config.time_limit_s) and new_form(config) == "graph" and config.data == "generated"


def pairs_made(config: SftConfig) -> dict[str, Any]:
    """Which pairs are made of a Graph, as `graph_pairs` takes it. The same on every machine: an order of styles hardly depends
    on the GPU."""
    device = device_for(DEFAULT_GPU)
    assert device
    rates = {precision: device.rates(precision) for precision in PRECISIONS}
    return {"styles": config.styles, "choice": config.style_choice or "uniform", "rates": rates}


def tasks_to_make(config: SftConfig) -> int:
    """Generated tasks to learn from, at most."""
    return config.count or (ENDLESS if streamed(config) else USUAL_TASKS)


def _counts(config: SftConfig, split: str) -> int:
    """Generated tasks of a split."""
    count = tasks_to_make(config)
    return count if split == "train" else max(10, min(VALIDATION_TASKS, count // 10))


def _generated_graphs(config: SftConfig, split: str) -> Iterator[Pair]:
    """Pairs of random Graphs, whose compositions are of this split alone."""
    from kernrl.tasks.nano.graph_pairs import generate_pairs

    how: dict[str, Any] = {"seed": config.seed, "split": split, "workers": _workers(config), **pairs_made(config)}
    for pair in generate_pairs(count=_counts(config, split), **how):
        yield Pair([{"role": "user", "content": pair.prompt}], pair.reply)


def _generated(config: SftConfig, split: str) -> Iterator[Task]:
    """Fusions, with some single ops first; compositions of the validation split never occur in training."""
    fusions = _counts(config, split)
    singles = fusions // 10
    precision = config.verifier.precision or PRECISION
    common = {"seed": config.seed, "split": split, "workers": _workers(config), "precision": precision}
    yield from generate_tasks(level=1, count=singles, **common)
    yield from generate_tasks(level=2, count=fusions - singles, **common)


def _table_pairs(config: SftConfig, rows: Sequence[Row], columns: Mapping[str, str], *, tell: bool) -> list[tuple[str, Pair]]:
    """(split, pair) of the rows that hold a pair; `tell` says on stderr why others do not."""
    found: list[tuple[str, Pair]] = []
    problems: list[str] = []
    for where, row in rows:
        try:
            if isinstance(row, BadRow):
                raise UnusableRow(str(row))
            found.append((str(row.get("split") or ""), row_pair(row, columns)))
        except UnusableRow as error:
            problems.append(f"{where} {error}")
    if not found:
        raise UsageError(f"--data {config.data}: no row holds a pair to learn: {problems[0]}.")
    if problems and tell:
        count = f"{len(problems)} of {len(rows)} rows hold no pair and were left out"
        log.print(f"{config.data}: {count}; the first: {problems[0]}.", markup=False, highlight=False, soft_wrap=True)
    return found


def _tasks(config: SftConfig, columns: Mapping[str, str], *, tell: bool) -> list[tuple[str, Task]]:
    """(split, task) of the tasks that have a solution and pass the task lint; `tell` says on stderr which do not."""
    try:
        loaded = load_tasks(config.data, revision=config.data_revision, columns=columns)
    except UsageError as error:
        raise UsageError(f"--data: no row has {FORMS} (--map names other columns), and none is a task. {error}") from None
    found = [task for task in loaded.tasks if task.solutions]
    if not found:
        raise UsageError(
            f"--data {config.data}: no row has {FORMS}, or a task with a `triton_code` or `solutions`; "
            "name other columns with --map."
        )
    return [(task.split, task) for task in sound_tasks(found, config.verifier, tell=tell)]
