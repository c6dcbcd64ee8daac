"""Runs solutions written from Graphs in the process of `interpreted.py`.

A request is `{"source", "sets", "edits": [[old, new], …]}`, its answer a list of `[style, code as edited, what is wrong or
""]`. `sets` are names of input sets, derived where the source states none; `full` is the source as it stands.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.solutions.from_graph.check import problems
from kernrl.tasks.solutions.from_graph.styles import write_solutions
from kernrl.tasks.task import Task


def answer(request: dict, folder: Path) -> list[list[str]]:
    """What is wrong with each solution of a task, after textual edits that make mutants."""
    task = with_input_sets(Task(id="task", pytorch_code=request["source"]))
    solutions = list(write_solutions(task))
    for old, new in request.get("edits", []):
        solutions = [replace(s, triton_code=s.triton_code.replace(old, new)) for s in solutions]
    found = [""] * len(solutions)
    for name in request.get("sets", ["small", "ragged"]):
        input_set = task.input_set(name)
        if input_set is not None:
            new = problems(task, input_set, solutions, folder)
            found = [a or (b and f"{name}: {b}") for a, b in zip(found, new, strict=True)]
    return [[s.style, s.triton_code, problem] for s, problem in zip(solutions, found, strict=True)]
