"""The verifier on a GPU: faults are the candidate's alone, time is measured, and chance earns nothing.

python -m pytest tests/gpu/test_verifier_gpu.py
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import TESTS, suite
from support.gpu_processes import children, gpu_processes

from kernrl.config import VerifierConfig
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Stage, Status, Verdict
from kernrl.verifier.pool.gpu_client import GpuClient
from kernrl.verifier.verifier import HardenedVerifier

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

TASK = suite.fixture_task("mish_chain")
GOOD = (TESTS / "honest" / "mish_chain_flat.py").read_text()


@pytest.fixture(scope="module")
def verifier() -> Iterator[HardenedVerifier]:
    with HardenedVerifier(VerifierConfig(cache=False, gpu_timeout_s=12)) as made:
        yield made


@pytest.fixture(autouse=True)
def next_verdict_is_unchanged(verifier: HardenedVerifier) -> Iterator[None]:
    yield
    assert verifier.verify(TASK, GOOD).status is Status.CORRECT


def test_a_right_candidate_is_timed(verifier: HardenedVerifier) -> None:
    verdict = verifier.verify(TASK, GOOD)
    assert (verdict.status, verdict.stage) == (Status.CORRECT, Stage.TIMING), verdict.reason
    assert verdict.timing
    assert verdict.timing.kind == "measured"
    speed = verdict.speedup()
    assert speed
    assert speed.significant
    assert 2 < speed.value < 8  # five pointwise kernels in one


def test_torch_compile_is_a_baseline() -> None:
    with HardenedVerifier(VerifierConfig(cache=False, baseline=("eager", "compile"))) as both:
        verdict = both.verify(TASK, GOOD)
    assert verdict.timing
    assert set(verdict.timing.speedups_x) == {"eager", "compile"}
    assert verdict.timing.speedups_x["compile"].value < verdict.timing.speedups_x["eager"].value


def test_compiled_baselines_have_a_fork_server_that_has_imported_inductor() -> None:
    """Importing it may ask for the GPU, which no fork could use then: the server would have started again, without it."""
    with HardenedVerifier(VerifierConfig(cache=False, baseline=("eager", "compile"))) as both:
        verdict = both.verify(TASK, GOOD)
        assert verdict.status is Status.CORRECT, verdict.reason
        gpu = both.evaluator.gpus[0]
        assert isinstance(gpu, GpuClient)
        assert gpu.pid
        [server] = children(gpu.pid)
        assert '"ahead"' in Path(f"/proc/{server}/cmdline").read_text()


def kernel(body: str) -> str:
    """A candidate whose only kernel does this to a copy of the input."""
    return f"""
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def work(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
{body}


class ModelNew(nn.Module):
    def __init__(self, *args):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        work[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024)
        return y
"""


HANG = """    s = tl.sum(x * 0.0 + 1.0)
    while s > -1.0:
        s += tl.sum(tl.load(y_ptr + offsets, mask=mask)) * 0.0 + 1.0
    tl.store(y_ptr + offsets, x + s, mask=mask)"""
FAR = "    tl.store(y_ptr + offsets + (1 << 44), x, mask=mask)\n    tl.store(y_ptr + offsets, x, mask=mask)"
NEAR = "    tl.store(y_ptr + offsets, x, mask=offsets < n + 16)"
UNWRITTEN = "    tl.store(y_ptr + offsets, x, mask=offsets < n - 1)"


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (HANG, {Status.TIMEOUT, Status.WRONG}),
        (FAR, {Status.CRASH}),
        (NEAR, {Status.WRONG, Status.CRASH}),
        (UNWRITTEN, {Status.WRONG}),
    ],
    ids=["hang", "fault", "overrun", "unwritten"],
)
def test_faults_end_in_a_verdict(verifier: HardenedVerifier, body: str, statuses: set[Status]) -> None:
    verdict = verifier.verify(TASK, kernel(body))
    assert verdict.status in statuses, (verdict.status, verdict.reason)
    assert verdict.stage is Stage.CORRECTNESS


def test_a_killed_worker_is_replaced(verifier: HardenedVerifier) -> None:
    for process in gpu_processes(verifier):
        os.kill(process, signal.SIGKILL)
    assert_nothing_lost(verifier)


def test_a_killed_gpu_process_is_replaced(verifier: HardenedVerifier) -> None:
    gpu = verifier.evaluator.gpus[0]
    assert isinstance(gpu, GpuClient)
    assert gpu.pid
    os.kill(gpu.pid, signal.SIGKILL)
    assert_nothing_lost(verifier)


def assert_nothing_lost(verifier: HardenedVerifier) -> None:
    verdicts: list[Verdict] = [v for _, v in verifier.verify_many([(TASK, GOOD + f"\n# {i}") for i in range(8)])]
    assert all(v.correct for v in verdicts)


def test_the_same_program_is_not_faster_than_itself(verifier: HardenedVerifier) -> None:
    gpu = verifier.evaluator.gpus[0]
    assert isinstance(gpu, GpuClient)
    same = gpu.twins(50)
    assert sum(s.significant and s.value > 1 for s in same) <= 2
    slow = gpu.twins(20, 0.05)[20:]  # the shortest program is launch overhead
    assert sum(s.significant and s.value < 1 for s in slow) >= 0.95 * len(slow)


def test_a_task_of_one_size_is_judged_at_that_size(verifier: HardenedVerifier) -> None:
    verdict = verifier.evaluator.evaluate(Task("alone", TASK.pytorch_code), GOOD)  # `verify` would derive further sizes
    assert verdict.correct, verdict.reason
    assert {record["input_set"] for record in verdict.errors} == {"full"}
    assert len({record["regime"] for record in verdict.errors}) >= 4
