"""Ops that change no output of a reference: found where there are some, and not elsewhere."""

from __future__ import annotations

import pytest

from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.judge.draws import Draw
from kernrl.verifier.judge.idle_ops import has_idle_op
from kernrl.verifier.judge.inputs import TaskInputs

MODULE = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 8)
        self.conv = nn.Conv1d(3, 1, 3)
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("held", torch.zeros(5, 3, 12))

    def forward(self, x):
        {body}


def get_inputs():
    return [torch.randn(5, 3, 12)]


def get_init_inputs():
    return []
"""

IDLE = {
    "shares of one": "return torch.softmax(torch.tanh(self.conv(x)), dim=1) * 2.0",
    "the mean of what is off the mean": "y = torch.sigmoid(x)\n        return F.logsigmoid((y - y.mean()).mean())",
    "a bound that is always met": "return x * F.layer_norm(x, (12,)).clamp(min=0.1, max=1.0).amin()",
    "a norm before a bound that always holds": "return x * F.layer_norm(x, (12,)).amax().clamp(max=0.1)",
    "nothing times a value": "return self.linear(x) + 0.0 * torch.relu(x[..., :8])",
    "a loop, and shares of one": "y = x\n        for _ in range(300):\n            y = torch.sin(y)\n"
    "        return torch.softmax(y.mean((1, 2), keepdim=True), dim=1) + y",
    "a logarithm of shares, twice": "return torch.log_softmax(torch.log_softmax(self.linear(x), dim=-1), dim=-1) * 0.3",
    "the positive part of what is positive": "return torch.relu(torch.exp(torch.tanh(self.linear(x)))) + 1.0",
    "a difference of a value and itself": "y = torch.sigmoid(x)\n        return x + (y - y)",
}

NOT_IDLE = {
    "layers": "return F.gelu(F.layer_norm(self.linear(x), (8,)))",
    "a view, changed in place": "y = x.flatten(1).clone()\n        y[:, :6].mul_(2.0)\n        return torch.relu(y)",
    "memory that is written": "y = torch.zeros_like(x)\n        y.copy_(torch.exp(x))\n        return y",
    "a norm in training": "return torch.relu(self.norm(x))",
    "what is computed in vain": "torch.exp(x)\n        return torch.relu(x)",
    "a clamp": "return x.clamp(-1.0, 1.0).sum(1)",
    "a norm before a bound that holds for some": "return x * F.layer_norm(x, (12,)).clamp(max=0.1)",
    "shares": "return torch.softmax(self.linear(x), dim=-1).amax(1)",
    "a mask of infinities": "m = torch.triu(torch.full((3, 3), float('-inf')), 1)\n"
    "        return torch.softmax(x @ x.transpose(1, 2) + m, dim=-1) @ x",
    "the input itself": "return x",
    "a loop whose first step is idle": "s = torch.zeros_like(x[:, 0])\n        for t in range(3):\n"
    "            s = s * torch.sigmoid(x[:, t]) + x[:, t]\n        return s",
    "state that is given back": "self.held.copy_(torch.sin(x))\n        return self.held",
    "a bound that small numbers do not meet": "return self.linear(x.clamp(-10.0, 10.0))",
    "a residual": "y = self.linear(x)\n        return y + torch.tanh(y)",
    "norms in a row": "return F.layer_norm(F.layer_norm(self.linear(x), (8,), eps=1e-3), (8,))",
    "a choice": "return torch.where(x > 0, torch.exp(x), torch.sin(x))",
}


def found(body: str, regime: str = "nominal") -> bool:
    inputs = TaskInputs(Task("task", MODULE.format(body=body)), InputSet(FULL), "fp32", "cpu")
    return has_idle_op(inputs, Draw(FULL, regime, 3))


@pytest.mark.slow
@pytest.mark.parametrize("regime", ["nominal", "mixed"])
@pytest.mark.parametrize("body", IDLE.values(), ids=list(IDLE))
def test_an_op_that_changes_nothing_is_found(body: str, regime: str) -> None:
    assert found(body, regime)


@pytest.mark.slow
@pytest.mark.parametrize("body", NOT_IDLE.values(), ids=list(NOT_IDLE))
def test_ops_that_change_something_are_not(body: str) -> None:
    assert not found(body)
