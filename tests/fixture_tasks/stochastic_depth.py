"""Residual layers with factors that the constructor reads off tensors: .item(), .tolist() and float()."""

import torch
import torch.nn as nn
INPUT_SETS = {"small": {"M": 8, "N": 16}, "ragged": {"M": 7, "N": 13}}
M = 4096
N = 1024
class Model(nn.Module):
    def __init__(self, depth, rate, n):
        super().__init__()
        self.keep = [1.0 - r.item() for r in torch.linspace(0, rate, depth)]
        self.steps = torch.arange(depth).tolist()
        self.blocks = nn.ModuleList([nn.Linear(n, n) for _ in range(depth)])
        self.scale = float(torch.sqrt(torch.tensor(2.0)))
    def forward(self, x):
        for i, block in zip(self.steps, self.blocks):
            x = x + torch.relu(block(x)) * self.keep[i] * self.scale
        return x
def get_inputs():
    return [torch.randn(M, N)]
def get_init_inputs():
    return [3, 0.1, N]
