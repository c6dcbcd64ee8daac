"""Runs solutions written from Graphs in the process of `interpreted.py`.

A request is `{"source", "sets", "edits": [[old, new], …], "styles", "precision", "constants"}`, its answer a list of
`[style, code as edited, what is wrong or ""]`. `sets` are names of input sets, derived where the request has no `task_sets`;
`full` is the source as it stands. `styles` are words of which a style has one, and `but` words of which it has none; of
these, `turn` `[i, n]` leaves every nth from the ith on. `constants` make one more set.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kernrl.tasks.constants import with_tuples
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.solutions.from_graph.check import problems
from kernrl.tasks.solutions.from_graph.styles import STYLES, write_solutions
from kernrl.tasks.task import InputSet, Task


def answer(request: dict, folder: Path) -> list[list[str]]:
    """What is wrong with each solution of a task, after textual edits that make mutants."""
    task = Task("task", request["source"], precision=request.get("precision", "fp32"))
    if rows := request.get("task_sets"):
        sets = [InputSet(name, with_tuples(constants), derived=True) for name, constants in rows]
        task = replace(task, input_sets=(*task.input_sets, *sets))
    else:
        task = with_input_sets(task)
    words, but = request.get("styles"), set(request.get("but", ()))
    styles = [s for s in STYLES if (not words or set(words) & set(s.name.split("-"))) and not but & set(s.name.split("-"))]
    first, step = request.get("turn", (0, 1))
    solutions = list(write_solutions(task, styles[first::step]))
    for old, new in request.get("edits", []):
        solutions = [replace(s, triton_code=s.triton_code.replace(old, new)) for s in solutions]
    found = [""] * len(solutions)
    further = [InputSet("further", constants)] if (constants := request.get("constants")) else []
    for input_set in [*(task.input_set(name) for name in request.get("sets", ["small", "ragged"])), *further]:
        if input_set is not None:
            new = problems(task, input_set, solutions, folder)
            found = [a or (b and f"{input_set.name}: {b}") for a, b in zip(found, new, strict=True)]
    return [[s.style, s.triton_code, problem] for s, problem in zip(solutions, found, strict=True)]
