"""Sizes that a module's file writes as numbers, `torch.randn(8192, 4096)`, as names at its top level: `SIZE_8192 = 8192`.

Input sets change names (`kernrl/tasks/graph/input_sets.py`), so a module without any could be judged at its own sizes alone,
which takes a GPU. `Model` stays as it is: a candidate for the one file is a candidate for the other.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from kernrl.errors import UsageError
from kernrl.syntax import parse_python
from kernrl.tasks.graph.input_sets import SMALLEST, states_sets, with_input_sets
from kernrl.tasks.task import Task

FUNCTIONS = ("get_inputs", "get_init_inputs")
COMMENT = "# kernrl gave these sizes names, so that they can be changed"

Naming = Callable[[int, int], str]
"""(number, its place among all) → the end of its name."""


def with_sets_of_numbers(task: Task, cache_dir: Path | None = None) -> Task:
    """The task with its sizes named and with small and ragged sets, where those can be derived then; else as it is.

    Equal numbers have one name, or where that gives no set, each has its own.

    Args:
        task: States no set but the full one, and none can be derived.
        cache_dir: As `with_input_sets`.
    """
    namings: tuple[Naming, ...] = (lambda number, place: str(number), lambda number, place: f"{number}_{place}")
    for naming in namings:
        try:
            source = named(task.pytorch_code, naming)
        except (UsageError, SyntaxError):
            break
        found = with_input_sets(replace(task, pytorch_code=source), cache_dir)
        if states_sets(found):
            return found
    return task


def named(source: str, naming: Naming) -> str:
    """The source with a name for every whole number from 8 on in `get_inputs` and `get_init_inputs`."""
    tree = parse_python(source)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS]
    numbers = sorted((n for f in functions for n in _numbers(f)), key=lambda n: (n.lineno, n.col_offset))
    if not numbers:
        return source
    prefix = "SIZE_"
    while prefix in source:
        prefix = f"_{prefix}"
    names: dict[str, int] = {}
    lines = source.encode().split(b"\n")  # columns count bytes
    for place, node in reversed(list(enumerate(numbers))):
        name = f"{prefix}{naming(int(node.value), place)}"  # pyright: ignore[reportArgumentType]
        names[name] = int(node.value)  # pyright: ignore[reportArgumentType]
        row = lines[node.lineno - 1]
        lines[node.lineno - 1] = row[: node.col_offset] + name.encode() + row[node.end_col_offset :]
    first = min(min([f.lineno, *(d.lineno for d in f.decorator_list)]) for f in functions) - 1
    constants = [f"{name} = {number}".encode() for name, number in sorted(names.items(), key=lambda item: item[1])]
    return b"\n".join([*lines[:first], COMMENT.encode(), *constants, b"", b"", *lines[first:]]).decode()


def _numbers(function: ast.FunctionDef) -> Iterator[ast.Constant]:
    """The whole numbers that may be sizes, in one line each; not those inside of f-strings, which have no columns."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value >= SMALLEST:
            yield node
        if not isinstance(node, ast.JoinedStr):
            waiting += ast.iter_child_nodes(node)
