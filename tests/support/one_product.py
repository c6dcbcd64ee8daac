"""A task of one input and one weight whose result a test writes: small enough to be judged many times."""

from __future__ import annotations

from kernrl.tasks.task import Task

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(24, 16))

    def forward(self, x):
        return RESULT

def get_inputs():
    return [torch.randn(32, 24)]

def get_init_inputs():
    return []
"""


def made(result: str) -> Task:
    """The task that returns an expression of `x` [32, 24] and `self.weight` [24, 16]."""
    return Task("t", SOURCE.replace("RESULT", result))
