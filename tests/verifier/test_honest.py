"""Honest code is let through: written by hand in the habits of real models, made from templates, and the worked solutions."""

from __future__ import annotations

import pytest
from support import EXHAUSTIVE, suite

from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.verifier.base.screen import screen
from kernrl.verifier.base.verdict import Verdict
from kernrl.verifier.funnel import StagedEvaluator

HONEST = {fixture.name: fixture for fixture in suite.honest()}
JUDGED = sorted(HONEST) if EXHAUSTIVE else sorted(HONEST)[::2]
"""By day every second by name: names begin with the task's, so that most tasks are there."""


def accepted(name: str, verdict: Verdict) -> bool:
    """`correct`, or what the fixture's header says of a machine without a GPU."""
    fixture = HONEST[name]
    return verdict.correct or ("cpu" in fixture.header and fixture.expectation("cpu").allows(verdict))


def test_there_are_a_hundred_and_sixty() -> None:
    assert len(HONEST) >= 160
    assert len({fixture.source for fixture in HONEST.values()}) == len(HONEST)


@pytest.mark.slow
def test_screen_lets_honest_code_pass() -> None:
    assert not {name: rejection for name, f in HONEST.items() if (rejection := screen(f.source)) is not None}


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED)
def test_honest_code_is_correct(name: str, cpu_evaluator: StagedEvaluator) -> None:
    verdict = cpu_evaluator.evaluate(HONEST[name].task, HONEST[name].source)
    assert accepted(name, verdict), f"{verdict.status} at {verdict.stage}: {verdict.reason}"


@pytest.mark.slow
def test_worked_solutions_are_correct(cpu_evaluator: StagedEvaluator) -> None:
    # fp32 has the narrowest tolerance; a norm of a norm can be ill-conditioned on small shapes:
    # docs/explanation/verifier.md, "What is not covered"
    made = generate_tasks(level=2, count=4, seed=7, precision="fp32")
    tasks = [t for t in made if sum("norm" in op for op in t.composition) < 2]
    pairs = [(task, solution) for task in tasks for solution in task.solutions[:2]]
    assert pairs
    for task, solution in pairs:
        verdict = cpu_evaluator.evaluate(task, solution.triton_code)
        assert verdict.correct, f"{task.id} {solution.style}: {verdict.status} at {verdict.stage}: {verdict.reason}"
