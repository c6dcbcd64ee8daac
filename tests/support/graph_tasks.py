"""Tasks of a line or two, and what Triton's interpreter says of the solutions that are written for them."""

from __future__ import annotations

from collections.abc import Sequence

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.task import FULL, InputSet, Task
from support import interpreted


def ask(requests: Sequence[dict]) -> list[list[list[str]]]:
    """[style, code, what is wrong] of every solution, for each request."""
    return list(interpreted.ask("graph_solution_worker", requests))


def module(init: str, forward: str, inputs: str, arguments: str = "self, x") -> str:
    """A task's source."""
    return f"""
import torch
from torch import nn
import torch.nn.functional as F

B, C, H, W = 6, 12, 18, 20


class Model(nn.Module):
    def __init__(self, C):
        super().__init__()
        {init}

    def forward({arguments}):
        {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return [C]
"""


IMAGE, ROWS = "torch.randn(B, C, H, W)", "torch.randn(H, C)"


def on_a_cpu(task: Task) -> Task | None:
    """The task with its small set for its full one; None where it has none."""
    task = with_input_sets(task)
    small, ragged = task.input_set("small"), task.input_set("ragged")
    if small is None or ragged is None:
        return None
    return Task(task.id, task.source_at(small), precision=task.precision, input_sets=(InputSet(FULL), ragged))
