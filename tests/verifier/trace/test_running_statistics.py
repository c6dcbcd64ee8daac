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


BY_TORCH = """            self.norm.running_mean.mul_(1 - self.norm.momentum).add_(mean, alpha=self.norm.momentum)
            self.norm.running_var.lerp_(var, self.norm.momentum)
"""
MOVED = [f"0.9 * self.norm.{name} + 0.1 * {new}" for name, new in (("running_mean", "mean"), ("running_var", "var"))]
UPDATES = {
    "assigned": "self.norm.running_mean = {0}\nself.norm.running_var = {1}",
    "data": "self.norm.running_mean.data = {0}\nself.norm.running_var.data = {1}",
    "copied": "self.norm.running_mean.copy_({0})\nself.norm.running_var[:] = {1}",
    "buffers": "self.norm._buffers['running_mean'] = {0}\nself.norm.register_buffer('running_var', {1})",
    "counted": "self.norm.running_mean = {0}\nself.norm.running_var = {1}\n"
    "self.norm.num_batches_tracked = self.norm.num_batches_tracked + 1",
    "torch alone": "mean, var = x.mean(0), x.var(0)\nself.norm.running_mean = {0}\nself.norm.running_var.copy_({1})",
}


def updated(how: str) -> str:
    """The candidate by torch, whose statistics are updated in another way."""
    lines = UPDATES[how].format(*MOVED).splitlines()
    whole = source("by_torch")
    assert BY_TORCH in whole
    return whole.replace(BY_TORCH, "".join(f"            {line}\n" for line in lines))


@pytest.mark.parametrize("how", UPDATES)
def test_statistics_are_updated_as_people_write_it(cpu_evaluator: StagedEvaluator, how: str) -> None:
    for plan in cpu_evaluator.plans_of(TASK, updated(how)):
        assert len(plan.outputs) == 3
        assert changed(plan) == {"temp"}
    verdict = cpu_evaluator.evaluate(TASK, updated(how))
    assert verdict.correct, verdict.reason
    verdict = cpu_evaluator.evaluate(TASK, updated(how).replace("0.1 * var", "0.1 * var * 1.02"))
    assert verdict.status is Status.WRONG
    assert "of norm.running_var after the call it gives" in verdict.reason


@pytest.mark.parametrize("new", ["x.mean(0, keepdim=True)", "x", "None"])
def test_a_statistic_keeps_its_shape(cpu_evaluator: StagedEvaluator, new: str) -> None:
    verdict = cpu_evaluator.evaluate(
        TASK, source("by_torch").replace(BY_TORCH, f"            self.norm.running_mean = {new}\n")
    )
    assert verdict.status is Status.UNTRACEABLE
    assert "gives running_mean another shape" in verdict.reason


def test_what_forward_returns_depends_on_a_kernel_whatever_its_statistics_do(cpu_evaluator: StagedEvaluator) -> None:
    decoy = updated("assigned").replace("return y", "return torch.nn.functional.leaky_relu(x, 0.1)")
    verdict = cpu_evaluator.evaluate(TASK, decoy)
    assert verdict.status is Status.DECOY
    assert "Output 0 does not depend" in verdict.reason


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
