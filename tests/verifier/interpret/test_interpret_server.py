"""Judging without a GPU asks what a GPU is asked: every configuration, and whether each launch does anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.front import HEAD, plan_of

from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.base.verdict import Status
from kernrl.verifier.interpret.interpret_server import SmallJob
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.pool.interpreters import Interpreters
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.trace.reference_spec import spec_of

torch.set_num_threads(1)

SETS = (InputSet("full"), InputSet("small", {"N": 48}))
DRAWS = [Draw("small", "nominal", 5), Draw("small", "offset", 6)]


def task(forward: str) -> Task:
    return Task(
        id="t",
        pytorch_code=f"""
import torch
import torch.nn as nn
import torch.nn.functional as F
N = 4096
class Model(nn.Module):
    def forward(self, x):
        return {forward}
def get_inputs():
    return [torch.randn(3, N)]
def get_init_inputs():
    return []
""",
        input_sets=SETS,
    )


pytestmark = pytest.mark.slow  # its processes take seconds to start


@pytest.fixture(scope="module")
def interpreters(cpu_forks: ForkServer) -> Iterator[Interpreters]:
    made = Interpreters(1, {}, cpu_forks)
    yield made
    made.close()


@pytest.fixture(scope="module")
def judge(interpreters: Interpreters):
    def judged(asked: Task, source: str, draws: list[Draw] = DRAWS):
        plan: Plan = plan_of(HEAD + source, spec_of(asked, SETS[1], "fp32", "sm_90"))
        return interpreters.judge(SmallJob(asked, "fp32", {"small": plan}, draws)).rejection

    return judged


TUNED = """
@triton.autotune([triton.Config({"BY": by}) for by in (2.0, 3.0)], key=["n"])
@triton.jit
def times(x_ptr, y_ptr, n, BY: tl.constexpr):
    i = tl.program_id(0) * 64 + tl.arange(0, 64)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n) * BY, mask=i < n)
class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        times[(triton.cdiv(x.numel(), 64),)](x, y, x.numel())
        return y
"""


def test_every_configuration_of_an_autotuned_kernel_is_asked(judge) -> None:
    doubled = task("x * 2")
    rejection = judge(doubled, TUNED)
    assert rejection is not None
    assert rejection.status is Status.WRONG
    assert judge(doubled, TUNED, DRAWS[:1]) is None, "the first configuration is right"


SHRUNK = """
@triton.jit
def {name}(y_ptr, n, AT: tl.constexpr):
    i = tl.program_id(0) * 64 + tl.arange(0, 64)
    y = tl.load(y_ptr + i, mask=i < n)
    tl.store(y_ptr + i, tl.where({condition}, 0.0, y), mask=i < n)
class ModelNew(nn.Module):
    def forward(self, x):
        y = launch(x)
        {name}[(triton.cdiv(y.numel(), 64),)](y, y.numel(), AT={at})
        return y
"""


def test_a_launch_that_works_on_tiny_numbers_alone_is_no_decoy(judge) -> None:
    shrunk = task("F.hardshrink(x * 2, 1e-4)")
    assert judge(shrunk, SHRUNK.format(name="shrink", condition="tl.abs(y) <= AT", at=1e-4)) is None


def test_a_launch_that_never_does_anything_is_a_decoy(judge) -> None:
    rejection = judge(task("x * 2"), SHRUNK.format(name="idle", condition="tl.abs(y) > AT", at=1e30))
    assert rejection is not None
    assert rejection.status is Status.DECOY
    assert "idle" in rejection.reason


BESIDE = """
@triton.jit
def beside(x_ptr, y_ptr, n):
    i = tl.program_id(0) * 64 + tl.arange(0, 64)
    v = tl.load(x_ptr + i)
    tl.store(y_ptr + i, {made}, mask=i < n)
class ModelNew(nn.Module):
    def forward(self, x):
        z = x * 2
        y = torch.zeros_like(x)
        beside[(2,)](x, y, 128)
        return {returned}
"""


@pytest.mark.parametrize(
    ("made", "returned", "second"),
    [
        ("v", "torch.where(y.isfinite(), z.nan_to_num(8.0, 8.0, 8.0), 7.0)", "nonfinite"),
        ("v", "z + 0.0 * y", "nonfinite"),
        ("tl.abs(v * v * v) * v * v * tl.abs(v * v * v) * v * v * v * v", "z + 0.0 * y", "large"),
    ],
)
def test_what_only_infinities_show_is_a_decoy(judge, made: str, returned: str, second: str) -> None:
    draws = [Draw("small", "nominal", 5), Draw("small", second, 6)]
    rejection = judge(task("x * 2"), BESIDE.format(made=made, returned=returned), draws)
    assert rejection is not None
    assert rejection.status is Status.DECOY
    assert "beside" in rejection.reason


def test_a_launch_that_only_makes_infinities_is_no_decoy(judge) -> None:
    masked = task("torch.where(x > 1.0, float('-inf'), x * 2)")
    source = SHRUNK.format(name="mask", condition="y > AT", at=2.0).replace("0.0, y)", "float('-inf'), y)")
    assert judge(masked, source) is None
