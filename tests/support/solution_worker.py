"""Runs worked solutions of generated tasks in the process of `interpreted.py`.

A request is `{"level", "seed", "index", "numbers", "edits": [[old, new], …], "input_sets", "regimes"}`, its answer `{solution
number: "" or what is wrong}`. Without `numbers`, every solution is run.
"""

from __future__ import annotations

import os
from pathlib import Path

from kernrl.tasks.grammar.generate import make_task
from kernrl.tasks.solutions.run_solutions import Bench, draw_like, load_module


def answer(request: dict, folder: Path) -> dict[int, str]:
    """What is wrong with each solution of a task, after textual edits that make mutants."""
    task = make_task(request["level"], request["seed"], request["index"])
    numbers = request.get("numbers") or range(len(task.solutions))
    problems = {number: "" for number in numbers if number < len(task.solutions)}
    modules = {}
    for number in problems:
        text = task.solutions[number].triton_code
        for old, new in request.get("edits", []):
            text = text.replace(old, new)
        modules[number] = load_module(text, folder / f"{task.id.replace('-', '_')}_{len(os.listdir(folder))}.py")
    for name in request.get("input_sets", ["small", "ragged"]):
        input_set = task.input_set(name)
        assert input_set is not None
        bench = Bench(task, input_set)
        for regime in request.get("regimes", ["normal"]):
            inputs = draw_like(bench.likes, regime, seed=request["index"])
            truth = bench.truth(inputs)
            for number, module in modules.items():
                try:
                    agreement = bench.compare(bench.answer(module), inputs, truth)
                    problem = "" if agreement.ok else str(agreement)
                except Exception as error:
                    problem = f"{type(error).__name__}: {str(error)[-200:]}"
                problems[number] = problems[number] or (
                    problem and f"{task.solutions[number].style} {name}/{regime}: {problem}"
                )
    return problems
