"""A task that can tell right from wrong is kept, and one that cannot is found out."""

from __future__ import annotations

import pytest
from support import suite

from kernrl.errors import UsageError
from kernrl.tasks.task import InputSet, Task
from kernrl.verifier.judge.task_lint import Finding, lint, objection

BLIND = """
import torch
import torch.nn as nn
N = 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return torch.relu(x - 1e9)


def get_inputs():
    return [torch.rand(N, N)]


def get_init_inputs():
    return []
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear_groupnorm_leaky", "conv_bn_relu", "softmax_temperature"])
def test_sound_tasks_refuse_every_mutant_and_accept_every_rewriting(name: str) -> None:
    task = suite.fixture_task(name)
    findings = lint(task)
    assert [f for f in findings if not f.sound] == []
    assert objection(findings) == ""
    names = {f.name for f in findings}
    assert {"zeros", "constant_mean", "last_tile_unwritten", "fp16_inside", "eager", "reordered", "without_op_0"} <= names
    assert lint(task, decisive=True) == [
        f for f in findings if f.should_pass or f.name in ("zeros", "constant_mean", "input_copy")
    ]


@pytest.mark.slow
def test_a_task_whose_output_is_always_zero_is_found_out() -> None:
    task = Task("blind", BLIND, input_sets=(InputSet("full"), InputSet("small", {"N": 8})))
    findings = lint(task)
    assert "zeros" in {f.name for f in findings if not f.sound}
    assert "zeros" in objection(findings)
    assert findings == lint(task), "the answer is the same every time"
    assert objection(lint(task, decisive=True)) == objection(findings)


def test_leaving_out_an_op_that_does_nothing_is_no_objection() -> None:
    assert objection([Finding("without_op_1", False, 0.5), Finding("fp16_inside", False, 0.9)]) == ""
    assert "(reordered) is refused" in objection([Finding("reordered", True, 3.0)])


def test_a_task_without_small_shapes_needs_a_gpu() -> None:
    with pytest.raises(UsageError, match="use a GPU"):
        lint(Task("large", BLIND))
