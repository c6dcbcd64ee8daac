"""Rotary position embedding of the heads' two halves; its frequencies are a buffer."""

import torch
import torch.nn as nn

INPUT_SETS = {'small': {'B': 2, 'S': 8, 'H': 2, 'D': 16}, 'ragged': {'B': 1, 'S': 7, 'H': 3, 'D': 12}}
B = 4
S = 2048
H = 16
D = 128


class Model(nn.Module):
    def __init__(self, dim, base):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / base ** (torch.arange(0, dim, 2).float() / dim))

    def forward(self, x):
        t = torch.arange(x.shape[1], device=x.device).to(x.dtype)
        angle = t[:, None] * self.inv_freq[None, :]
        c, s = angle.cos()[None, :, None, :], angle.sin()[None, :, None, :]
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * c - b * s, b * c + a * s], dim=-1)


def get_inputs():
    return [torch.randn(B, S, H, D)]


def get_init_inputs():
    return [D, 10000.0]
