"""Tasks that no GPU has room for are known before a candidate is there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernrl.config import VerifierConfig
from kernrl.tasks.task import Task
from kernrl.verifier.funnel import StagedEvaluator
from kernrl.verifier.task_facts import device_aimed_at

SOURCE = """
import torch
from torch import nn

N = 1024

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x) * 2

def get_inputs():
    return [torch.randn(N, N)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def evaluator(monkeypatch: pytest.MonkeyPatch) -> StagedEvaluator:
    """One that has a GPU with 13.3 GiB for candidates, by its word."""
    monkeypatch.setattr(StagedEvaluator, "_lanes", 4)
    made = StagedEvaluator(VerifierConfig(device="cpu"))
    made.gpus, made._started = [SimpleNamespace(gpu_info={"usable_bytes": str(13.3 * 2**30)})], True  # pyright: ignore
    made._device = device_aimed_at("H200", None)
    return made


@pytest.mark.slow
def test_only_what_is_larger_than_the_gpu_is_unfit(evaluator: StagedEvaluator) -> None:
    assert evaluator.unfit(Task("small", SOURCE)) == ""
    assert evaluator.unfit(Task("large", SOURCE.replace("N = 1024", "N = 8192"))) == "", (
        "0.25 GiB, and 0.5 of truth for each draw"
    )
    said = evaluator.unfit(Task("huge", SOURCE.replace("N = 1024", "N = 16384")))
    assert said.startswith("huge: judging any candidate takes "), said
    assert said.endswith("GiB, and the GPU has 13.3 GiB for it: give the task smaller sizes.")


def test_a_reference_that_needs_numbers_counts_as_fit(evaluator: StagedEvaluator) -> None:
    reads = SOURCE.replace("N = 1024", "N = 16384").replace("torch.relu(x) * 2", "x[: int(x.sum())]")
    assert evaluator.unfit(Task("reads", reads)) == ""
