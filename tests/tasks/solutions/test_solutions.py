"""Worked solutions against their references, in Triton's interpreter at small and ragged sizes."""

from __future__ import annotations

from functools import cache

import pytest
from support import EXHAUSTIVE, interpreted

from kernrl.tasks.grammar.generate import draw_task_program, make_task
from kernrl.tasks.grammar.pointwise import POINTWISE, Pointwise
from kernrl.tasks.grammar.producers import FAMILIES
from kernrl.tasks.grammar.reductions import CORES

SEED = 11
POOL = 260
"""Tasks of each level from which covering sets are chosen."""


def ask(requests: list[dict]) -> list[dict[str, str]]:
    """What is wrong with each solution, by its number, for each request."""
    return list(interpreted.ask("solution_worker", requests))


@cache
def features(level: int) -> dict[tuple[int, int], frozenset[str]]:
    """(task, solution) → what it exercises: the task's ops and family, and the solution's traits beside each reduced space."""
    found = {}
    for index in range(POOL):
        program = draw_task_program(level, SEED, index, 2 << 30)
        spaces = {step.core.space for step in program.steps if step.core} or {"point"}
        layout = program.producer.after.layout
        for number, solution in enumerate(make_task(level, SEED, index).solutions):
            pairs = {f"{space}/{layout}/{trait}" for space in spaces for trait in solution.style.split("-")}
            found[index, number] = frozenset({program.producer.family, *program.composition} | pairs)
    return found


def covering(level: int) -> tuple[dict[int, list[int]], set[str]]:
    """Task → its solutions, chosen greedily, that together show every feature of the pool; and those features."""
    everything = set().union(*features(level).values())
    missing, chosen = set(everything), {}
    while missing:
        index, number = max(features(level), key=lambda pair: len(features(level)[pair] & missing))
        missing -= features(level)[index, number]
        chosen.setdefault(index, []).append(number)
    return chosen, everything


def wrong(requests: list[dict]) -> list[str]:
    """Every complaint of the worker, with the task it is about."""
    return [
        f"level {request['level']} seed {SEED} index {request['index']}: {problem}"
        for request, answer in zip(requests, ask(requests), strict=True)
        for problem in answer.values()
        if problem
    ]


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
def test_every_op_family_and_style_is_right(level: int) -> None:
    chosen, seen = covering(level)
    names = {op.name for op in (*POINTWISE, *CORES)}
    if level == 2:
        assert names | set(FAMILIES) <= seen
        assert {"library", "bare", "dot", "fused", "split", "unfused", "whole", "walk", "welford", "stats"} <= {
            trait.split("/")[-1] for trait in seen
        }
    # at night every solution of these tasks
    requests = [{"index": index, "numbers": None if EXHAUSTIVE else numbers} for index, numbers in chosen.items()]
    assert not wrong([{"level": level, "seed": SEED, **request} for request in requests])


@pytest.mark.slow
def test_solutions_are_right_in_every_regime_of_inputs() -> None:
    regimes = ["uniform", "offset", "small", "large", "sparse", "onehot"]
    every = {"level": 2, "seed": SEED, "regimes": regimes}
    by_day = {"input_sets": ["ragged"], "numbers": [0, 1]}
    requests = [every | {"index": index} | ({} if EXHAUSTIVE else by_day) for index in range(12 if EXHAUSTIVE else 6)]
    assert not wrong(requests)


def pointwise_tasks(count: int) -> list[int]:
    """Indices of tasks whose steps are all pointwise."""
    found = (i for i in range(POOL) if all(isinstance(s.op, Pointwise) for s in draw_task_program(2, SEED, i, 2 << 30).steps))
    return [index for index, _ in zip(found, range(count), strict=False)]


@pytest.mark.slow
def test_dropped_ops_and_missing_elements_are_seen() -> None:
    requests, solutions = [], []
    for index in pointwise_tasks(4):
        code = make_task(2, SEED, index).solutions[0].triton_code
        lines = [line for line in code.split("def forward")[0].splitlines() if line.strip().startswith("x = ")]
        edits = [[f"\n{line}\n", "\n"] for line in lines if "x_ptr" not in line and "in_ptr" not in line]
        edits += [["< n_elements", "< n_elements - 1"], ["cols < n", "cols < n - 1"], ["col < n", "col < n - 1"]]
        for old, new in edits:
            if old in code:
                requests.append({"level": 2, "seed": SEED, "index": index, "edits": [[old, new]], "input_sets": ["ragged"]})
                solutions.append(old)
    assert len(requests) > 8
    unseen = [text for text, answer in zip(solutions, ask(requests), strict=True) if not answer["0"]]
    assert not unseen


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "edits"),
    [
        ("layer_norm", [["+ 1e-5", "+ 1e-2"]]),
        ("layer_norm", [["/ n\n", "/ (n - 1)\n"]]),
        (
            "layer_norm",
            [[" * tl.load(norm_weight_ptr", " * 1.0  # tl.load(norm_weight_ptr"], [" * tl.load(weight_ptr", " * 1.0  #"]],
        ),
        ("softmax", [["tl.exp(", "tl.exp2("]]),
        ("gelu", [["0.70710678", "0.7"]]),
        ("logsumexp", [['float("-inf")', "0.0"], ["-1e38", "0.0"]]),
    ],
)
def test_quietly_wrong_solutions_are_seen(op: str, edits: list[list[str]]) -> None:
    """Each mutant changes every solution of the level-1 task of that op that holds the text."""
    index = next(i for i in range(10 * POOL) if draw_task_program(1, SEED, i, 2 << 30).composition == (op,))
    codes = [solution.triton_code for solution in make_task(1, SEED, index).solutions]
    touched = [number for number, code in enumerate(codes) if any(old in code for old, _ in edits)]
    assert touched
    answer = ask([{"level": 1, "seed": SEED, "index": index, "edits": edits}])[0]
    assert all(answer[str(number)] for number in touched), answer
