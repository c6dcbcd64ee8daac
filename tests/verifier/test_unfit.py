"""Tasks that no GPU has room for are known before a candidate is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.stand_in_gpu import StandIn

from kernrl.config import VerifierConfig
from kernrl.tasks.task import Task
from kernrl.verifier import funnel
from kernrl.verifier.base.devices import Device
from kernrl.verifier.funnel import StagedEvaluator
from kernrl.verifier.pool.task_facts import TaskFacts, gather_facts

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


class Small(StandIn):
    """A GPU that has 13.3 GiB for candidates, by its word."""

    def __init__(self, *arguments: Any, **settings: Any):
        super().__init__(*arguments, **settings)
        self.gpu_info["usable_bytes"] = str(13.3 * 2**30)


class NoFront:
    """No process that traces or compiles: there is no candidate."""

    def __init__(self, *arguments: Any, **settings: Any): ...

    def start(self) -> None: ...

    def facts(self, task: Task, precision: str, device: Device, *, on_gpu: bool) -> TaskFacts:
        return gather_facts(task, precision, device, on_gpu=on_gpu)

    def close(self) -> None: ...


@pytest.fixture
def evaluator(monkeypatch: pytest.MonkeyPatch) -> Iterator[StagedEvaluator]:
    monkeypatch.setattr(funnel, "visible_gpus", lambda: ["0"])
    monkeypatch.setattr(funnel, "GpuClient", Small)
    monkeypatch.setattr(funnel, "LocalFront", NoFront)
    made = StagedEvaluator(VerifierConfig(cache=False))
    yield made
    made.close()


@pytest.mark.slow
def test_only_what_is_larger_than_the_gpu_is_unfit(evaluator: StagedEvaluator) -> None:
    assert evaluator.unfit(Task("small", SOURCE)) == ""
    assert evaluator.unfit(Task("large", SOURCE.replace("N = 1024", "N = 8192"))) == "", (
        "0.25 GiB, and 0.5 of truth for each draw"
    )
    said = evaluator.unfit(Task("huge", SOURCE.replace("N = 1024", "N = 16384")))
    assert said.startswith("huge: judging any candidate takes "), said
    assert said.endswith("GiB, and the GPU has 13.3 GiB for it: give the task smaller sizes.")


@pytest.mark.slow
def test_a_reference_that_needs_numbers_counts_as_fit(evaluator: StagedEvaluator) -> None:
    reads = SOURCE.replace("N = 1024", "N = 16384").replace("torch.relu(x) * 2", "x[: int(x.sum())]")
    assert evaluator.unfit(Task("reads", reads)) == ""


def test_a_fault_of_ours_is_not_taken_for_a_task_that_fits(evaluator: StagedEvaluator, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluator.start()
    with monkeypatch.context() as patch:
        patch.setattr(evaluator, "front", object())  # without what gathers facts
        with pytest.raises(AttributeError):
            evaluator.unfit(Task("small", SOURCE))
