"""Rotary embedding of q and k, which are parts of one projection."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"T": 8, "H": 2, "KV": 1, "D": 16}, "ragged": {"T": 5, "H": 3, "KV": 2, "D": 12}}
T = 4096
H = 32
KV = 8
D = 128


class Model(nn.Module):
    def __init__(self, H, KV, D):
        super().__init__()
        self.sizes = [H * D, KV * D, KV * D]
        self.D = D

    def forward(self, qkv, cos, sin):
        q, k, v = qkv.split(self.sizes, -1)
        def rot(x):
            x = x.unflatten(-1, (-1, self.D))
            a, b = x.chunk(2, -1)
            c, s = cos[:, None], sin[:, None]
            return torch.cat((a * c - b * s, b * c + a * s), -1)
        return rot(q), rot(k), v.unflatten(-1, (-1, self.D))


def get_inputs():
    return [torch.randn(T, (H + 2 * KV) * D), torch.randn(T, D // 2), torch.randn(T, D // 2)]


def get_init_inputs():
    return [H, KV, D]
