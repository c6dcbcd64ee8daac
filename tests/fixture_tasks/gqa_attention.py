"""Attention of query heads in groups that share keys and values."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 1, "HQ": 4, "HK": 2, "S": 16, "D": 16}, "ragged": {"B": 1, "HQ": 2, "HK": 1, "S": 19, "D": 16}}
B = 2
HQ = 16
HK = 4
S = 256
D = 64


class Model(nn.Module):
    def forward(self, q, k, v):
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        return torch.softmax(scores, dim=-1) @ v


def get_inputs():
    return [torch.randn(B, HQ, S, D), torch.randn(B, HK, S, D), torch.randn(B, HK, S, D)]


def get_init_inputs():
    return []
