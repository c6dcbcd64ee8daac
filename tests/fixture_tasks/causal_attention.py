"""Causal attention written out: scaled product, mask, softmax, product."""

import torch
import torch.nn as nn

INPUT_SETS = {'small': {'B': 1, 'H': 2, 'S': 32, 'D': 16}, 'ragged': {'B': 2, 'H': 1, 'S': 27, 'D': 16}}
B = 8
H = 16
S = 1024
D = 64


class Model(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.scale = head_dim**-0.5

    def forward(self, q, k, v):
        s = (q @ k.transpose(-2, -1)) * self.scale
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        return torch.softmax(s.masked_fill(~mask, float("-inf")), dim=-1) @ v


def get_inputs():
    return [torch.randn(B, H, S, D) for _ in range(3)]


def get_init_inputs():
    return [D]
