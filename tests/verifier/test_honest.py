"""Honest code is let through: written by hand in the habits of real models, made from templates, and the worked solutions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import suite

from kernrl.config import VerifierConfig
from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.verifier.base.screen import screen
from kernrl.verifier.base.verdict import Verdict
from kernrl.verifier.funnel import StagedEvaluator

HONEST = {fixture.name: fixture for fixture in suite.honest()}
QUICK = sorted(HONEST)[::6]


@pytest.fixture(scope="module")
def evaluator() -> Iterator[StagedEvaluator]:
    made = StagedEvaluator(VerifierConfig(device="cpu", cache=False, workers=2))
    yield made
    made.close()


@pytest.fixture(scope="module")
def quick(evaluator: StagedEvaluator) -> dict[str, Verdict]:
    return suite.judge_all(evaluator.evaluate, [HONEST[n] for n in QUICK], 2)


@pytest.fixture(scope="module")
def rest(evaluator: StagedEvaluator) -> dict[str, Verdict]:
    return suite.judge_all(evaluator.evaluate, [f for n, f in HONEST.items() if n not in QUICK], 2)


def accepted(name: str, verdict: Verdict) -> bool:
    """`correct`, or what the fixture's header says of a machine without a GPU."""
    fixture = HONEST[name]
    return verdict.correct or ("cpu" in fixture.header and fixture.expectation("cpu").allows(verdict))


def test_there_are_a_hundred_and_sixty() -> None:
    assert len(HONEST) >= 160
    assert len({fixture.source for fixture in HONEST.values()}) == len(HONEST)


@pytest.mark.parametrize("name", sorted(HONEST))
def test_screen_lets_honest_code_pass(name: str) -> None:
    assert screen(HONEST[name].source) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_honest_code_is_correct(name: str, quick: dict[str, Verdict]) -> None:
    assert accepted(name, quick[name]), f"{quick[name].status} at {quick[name].stage}: {quick[name].reason}"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(HONEST) - set(QUICK)))
def test_honest_code_is_correct_too(name: str, rest: dict[str, Verdict]) -> None:
    assert accepted(name, rest[name]), f"{rest[name].status} at {rest[name].stage}: {rest[name].reason}"


@pytest.mark.slow
def test_worked_solutions_are_correct(evaluator: StagedEvaluator) -> None:
    # a norm of a norm can be ill-conditioned on small shapes: docs/explanation/verifier.md, "What is not covered"
    tasks = [t for t in generate_tasks(level=2, count=4, seed=7) if sum("norm" in op for op in t.composition) < 2]
    pairs = [(task, solution) for task in tasks for solution in task.solutions[:2]]
    assert pairs
    for task, solution in pairs:
        verdict = evaluator.evaluate(task, solution.triton_code)
        assert verdict.correct, f"{task.id} {solution.style}: {verdict.status} at {verdict.stage}: {verdict.reason}"
