"""Running statistics that forward updates become outputs of the plan, which changes no state."""

from __future__ import annotations

import pytest
from support import TESTS, suite

from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Status
from kernrl.verifier.funnel import StagedEvaluator
from kernrl.verifier.plan import checks
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.verifier import HardenedVerifier

pytestmark = pytest.mark.slow  # its processes take seconds to start

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


FROZEN = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels).eval()

    def forward(self, x):
        return torch.relu(self.norm(x.amax(dim=(0, 2, 3), keepdim=True)))

def get_inputs():
    return [torch.randn(4, 8, 16, 16)]

def get_init_inputs():
    return [8]
"""
FROZEN_CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def kernel(y_ptr, mean_ptr, var_ptr, w_ptr, b_ptr, out_ptr, C, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    inside = c < C
    y, mean = tl.load(y_ptr + c, mask=inside), tl.load(mean_ptr + c, mask=inside)
    scale = tl.load(w_ptr + c, mask=inside) / tl.sqrt(tl.load(var_ptr + c, mask=inside) + 1e-5)
    tl.store(out_ptr + c, tl.maximum((y - mean) * scale + tl.load(b_ptr + c, mask=inside), 0.0), mask=inside)

class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        y, norm = x.amax(dim=(0, 2, 3), keepdim=True).contiguous(), self.norm
        out = torch.empty_like(y)
        C = y.shape[1]
        kernel[(1,)](y, norm.running_mean, norm.running_var, norm.weight, norm.bias, out, C, BLOCK=triton.next_power_of_2(C))
        return out
"""


def test_a_norm_that_is_frozen_when_it_is_made_stays_frozen(cpu_verifier: HardenedVerifier) -> None:
    """Set to training with the module around it, it would refuse one value a channel, and need other numbers."""
    task = Task("frozen", FROZEN)
    assert cpu_verifier.verify(task, FROZEN_CANDIDATE).correct
    by_batch = FROZEN_CANDIDATE.replace("(y - mean) * scale", "(y - y) * scale")
    assert cpu_verifier.verify(task, by_batch).status == "wrong"
