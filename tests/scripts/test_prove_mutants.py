"""Mutation operators change one place each, and the verifier kills what they make of a worked solution."""

from __future__ import annotations

import argparse
import math
import random
import sys
from dataclasses import replace
from typing import Any

import pytest
from support import EXHAUSTIVE, ROOT
from support.pool_of_threads import pool_of_threads

from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.verifier.funnel import StagedEvaluator

sys.path.insert(0, str(ROOT / "scripts"))

from mutation_operators import OPERATORS, drawn, mutants  # pyright: ignore[reportMissingImports]

SOURCE = """
@triton.jit
def norm(x, w, b, y, M, N, BLOCK: tl.constexpr):
    r = tl.program_id(0) * 4 + tl.arange(0, 4)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    mask = (r < M) & (c < N)
    v = tl.load(x + r * N + c, mask=mask, other=0.0)
    acc = tl.zeros((4, BLOCK), tl.float32)
    acc += gelu(v)
    mean = tl.sum(acc, axis=1)[:, None] / N
    v = tl.maximum(v - mean, 0.25)
    s = tl.sqrt(tl.sum(v * v, axis=1) / N + 1e-5)[:, None]
    v = tl.exp(v - s) + tl.load(b + c, mask=c < N)
    tl.store(y + r * N + c, v, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        norm[(triton.cdiv(x.shape[0], 4),)](x, x, x, x, 1, 1, BLOCK=64)
        return x
"""


def test_every_operator_changes_one_place() -> None:
    made = list(mutants(SOURCE))
    assert {mutant.operator for mutant in made} == set(OPERATORS)
    assert len({mutant.source for mutant in made}) > len(OPERATORS)
    for mutant in made:
        compile(mutant.source, "mutant", "exec")
        assert mutant.line


@pytest.mark.parametrize(
    ("operator", "text"),
    [
        ("dropped helper", "acc += v"),
        ("stale statistics", "acc = gelu(v)"),
        ("missing max", "tl.exp(v)"),
        ("tail unwritten", "norm[x.shape[0] // 4,]"),
        ("padded length", "tl.sum(acc, axis=1)[:, None] / BLOCK"),
        ("mask off by one", "(c < N - 1)"),
        ("wrong eps", "0.001"),
    ],
)
def test_an_operator_makes_the_mistake_that_it_names(operator: str, text: str) -> None:
    assert any(text in mutant.source for mutant in mutants(SOURCE) if mutant.operator == operator)


def test_those_drawn_are_some_of_all() -> None:
    every = list(mutants(SOURCE))
    some = list(drawn(SOURCE, 1, random.Random(0)))
    assert {mutant.operator for mutant in some} == set(OPERATORS)
    assert len(some) == len(OPERATORS)
    assert all(mutant in every for mutant in some)
    assert list(drawn(SOURCE, 1000, random.Random(0))) != every  # in another order
    assert sorted(m.source for m in drawn(SOURCE, 1000, random.Random(0))) == sorted(m.source for m in every)


@pytest.fixture
def prove_mutants(monkeypatch: pytest.MonkeyPatch) -> Any:
    import prove_mutants  # pyright: ignore[reportMissingImports]

    if not EXHAUSTIVE:
        monkeypatch.setattr(prove_mutants, "ProcessPoolExecutor", pool_of_threads)
    return prove_mutants


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_the_mutants_of_a_worked_solution_are_killed(prove_mutants: Any, cpu_evaluator: StagedEvaluator) -> None:
    (task,) = generate_tasks(level=2, count=1, seed=0, precision="fp32")
    options = argparse.Namespace(device="cpu", each=1, processes=1)
    (part,) = prove_mutants.judged(options, [(task, 0)], math.inf)
    assert not part["refused"]
    assert len(part["rows"]) >= 5
    asked = replace(task, solutions=())
    schedules = prove_mutants.Schedules(cpu_evaluator, 3)
    for survivor in part["survivors"]:
        plans = prove_mutants.traced(cpu_evaluator, asked, survivor["solution"])
        survivor["reason"] = prove_mutants.reason_of(cpu_evaluator, schedules, asked, plans, survivor["source"])
        assert not survivor["reason"].startswith("missed"), survivor
    total = prove_mutants.summary([part])["total"]
    assert total["killed"] == len(part["rows"])
    assert "unknown" not in total


@pytest.mark.slow
def test_nothing_is_judged_after_the_deadline(prove_mutants: Any) -> None:
    (task,) = generate_tasks(level=2, count=1, seed=0, precision="fp32")
    assert not list(prove_mutants.judged(argparse.Namespace(device="cpu", each=1, processes=1), [(task, 0)], 0.0))
