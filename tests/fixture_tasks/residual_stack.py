"""Three residual blocks of a linear layer and hardswish, and a score; a dict."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"rows": 2, "width": 32}, "ragged": {"rows": 3, "width": 19}}
rows = 512
width = 256
depth = 3


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x + F.hardswish(self.fc(x)) * self.scale


class Model(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.ParameterDict({"weight": nn.Parameter(torch.randn(width)), "bias": nn.Parameter(torch.zeros(1))})

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return {"hidden": x, "score": (x * self.head["weight"]).sum(-1) + self.head["bias"]}


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return [width, depth]
