"""The experts of each token, and their weights; a NamedTuple."""

from typing import NamedTuple

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"TOKENS": 2, "HIDDEN": 32, "EXPERTS": 16}, "ragged": {"TOKENS": 3, "HIDDEN": 19, "EXPERTS": 11}}

class Routing(NamedTuple):
    weights: torch.Tensor
    experts: torch.Tensor


TOKENS = 512
HIDDEN = 256
EXPERTS = 32


class Model(nn.Module):
    def __init__(self, hidden, experts, k):
        super().__init__()
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.k = k

    def forward(self, x):
        p = torch.softmax(self.gate(x), dim=-1)
        w, i = torch.topk(p, self.k, dim=-1)
        return Routing(w / w.sum(-1, keepdim=True), i.to(torch.int32))


def get_inputs():
    return [torch.randn(TOKENS, HIDDEN)]


def get_init_inputs():
    return [HIDDEN, EXPERTS, 4]
