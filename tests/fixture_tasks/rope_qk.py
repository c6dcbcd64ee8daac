"""Rotary embedding of queries and of fewer keys by given cosines and sines of half width."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 1, "S": 8, "HQ": 4, "HK": 2, "D": 16}, "ragged": {"B": 2, "S": 5, "HQ": 3, "HK": 1, "D": 12}}
B = 4
S = 4096
HQ = 32
HK = 8
D = 128


def rotate(x, c, s):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1)


class Model(nn.Module):
    def forward(self, q, k, cos, sin):
        c, s = cos[None, None], sin[None, None]
        return rotate(q, c, s), rotate(k, c, s)


def get_inputs():
    angle = torch.rand(S, D // 2) * 6.28
    return [torch.randn(B, HQ, S, D), torch.randn(B, HK, S, D), angle.cos(), angle.sin()]


def get_init_inputs():
    return []
