"""Where SFT pairs come from: the generator, tasks with worked solutions, or a table in one of TRL's forms."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain

from kernrl.config import SftConfig
from kernrl.console import log
from kernrl.errors import UsageError
from kernrl.policy.pairs import Pair, UnusableRow, row_pair, task_pairs
from kernrl.tasks.generate import generate_tasks
from kernrl.tasks.loaders import load_tasks, read_rows
from kernrl.tasks.rows import BadRow, parse_columns
from kernrl.tasks.task import Task

VALIDATION_TASKS = 256
"""Most tasks made for the validation loss when data is generated; a tenth of the training tasks if that is fewer."""

VALIDATION_EVERY = 50
"""Where a table has no validation split of its own, every so-manieth row is one."""

SPLITS = {"train": ("train",), "validation": ("validation", "test", "eval")}
"""Names a split goes by in the data people have."""


def read_pairs(config: SftConfig, split: str) -> Iterator[Pair]:
    """The pairs of the `train` or `validation` split of `--data`.

    Raises:
        UsageError: nothing usable is there.
    """
    style = "nano" if config.prompt == "nano" or (config.prompt is None and config.model == "nano") else "chat"
    if config.data == "generated":
        return task_pairs(_generated(config, split), style)
    table = _table_pairs(config, split)
    if (first := next(table, None)) is not None:
        return chain([first], table)
    # no row in TRL's forms: then they are tasks, whose solutions are the answers
    loaded = load_tasks(config.data, revision=config.revision, columns=parse_columns(config.map))
    wanted = [t for t in loaded.tasks if t.split in SPLITS[split]]
    if not any(t.split for t in loaded.tasks):
        wanted = [t for n, t in enumerate(loaded.tasks) if (n % VALIDATION_EVERY == 0) == (split == "validation")]
    if not any(t.solutions for t in wanted):
        raise UsageError(
            f"--data {config.data}: no {split} row has `messages`, `prompt` and `completion`, or a task with a "
            "`triton_code` or `solutions`; name other columns with --map."
        )
    return task_pairs(wanted, style)


def _generated(config: SftConfig, split: str) -> Iterator[Task]:
    """Fusions, and single ops as an easy start; the validation split is of compositions that training never shows."""
    fusions = config.count if split == "train" else max(10, min(VALIDATION_TASKS, config.count // 10))
    singles = fusions // 10
    common = {"seed": config.seed, "split": split, "workers": config.workers or len(os.sched_getaffinity(0))}
    yield from generate_tasks(level=1, count=singles, **common)
    yield from generate_tasks(level=2, count=fusions - singles, **common)


def _table_pairs(config: SftConfig, split: str) -> Iterator[Pair]:
    refused = 0
    rows = [row for _, row in read_rows(config.data, revision=config.revision) or () if not isinstance(row, BadRow)]
    named = any(row.get("split") in SPLITS["validation"] for row in rows)
    for number, row in enumerate(rows):
        mine = row.get("split") in SPLITS[split] if named else (number % VALIDATION_EVERY == 0) == (split == "validation")
        if not mine:
            continue
        try:
            yield row_pair(row)
        except UnusableRow:
            refused += 1
    if refused and refused < len(rows):
        log.print(f"{config.data}: {refused} {split} rows hold no pair and were left out.")
