"""Running statistics that forward updates become outputs of the plan, which changes no state."""

from __future__ import annotations

import pytest
from support import TESTS, suite

from kernrl.verifier.base.verdict import Status
from kernrl.verifier.funnel import StagedEvaluator
from kernrl.verifier.plan import checks
from kernrl.verifier.plan.plan import Plan

HONEST = TESTS / "honest"
TASK = suite.fixture_task("batchnorm_running")


def source(name: str) -> str:
    return (HONEST / f"batchnorm_running_{name}.py").read_text()


def changed(plan: Plan) -> set[str]:
    """Kinds of the storages that forward's nodes change."""
    return {plan.storages[s].kind for node in plan.nodes for s in checks.written(node, plan)}


@pytest.mark.parametrize(("name", "returned"), [("in_the_kernel", 3), ("by_torch", 3), ("left_alone", 1)])
def test_a_plan_returns_what_they_become(cpu_evaluator: StagedEvaluator, name: str, returned: int) -> None:
    for plan in cpu_evaluator.plans_of(TASK, source(name)):
        assert len(plan.outputs) == returned
        assert changed(plan) == {"temp"}


def test_all_or_none(cpu_evaluator: StagedEvaluator) -> None:
    some = "\n".join(line for line in source("in_the_kernel").splitlines() if "store(running_var" not in line)
    verdict = cpu_evaluator.evaluate(TASK, some)
    assert verdict.status is Status.UNTRACEABLE
    assert "updates norm.running_mean and not norm.running_var" in verdict.reason


def test_other_state_stays_as_it_is(cpu_evaluator: StagedEvaluator) -> None:
    update = "self.norm.running_mean.mul_("
    moved = source("by_torch").replace(update, f"self.norm.weight.mul_(1.0)\n            {update}")
    verdict = cpu_evaluator.evaluate(TASK, moved)
    assert (verdict.status, "parameter" in verdict.reason) == (Status.POLICY, True), verdict.reason
