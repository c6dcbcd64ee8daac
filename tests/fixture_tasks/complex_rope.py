"""Rotary embedding by a complex table."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 1, "S": 8, "H": 2, "D": 16}, "ragged": {"B": 2, "S": 7, "H": 3, "D": 12}}
B = 2
S = 64
H = 4
D = 32


class Model(nn.Module):
    """Rotary embedding by complex numbers."""

    def __init__(self, dim, theta, max_len):
        super().__init__()
        freqs = 1.0 / (theta ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("freqs_cis", torch.polar(torch.ones(max_len, dim // 2), torch.outer(torch.arange(max_len).float(), freqs)), persistent=False)

    def forward(self, x):
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * self.freqs_cis[: x.shape[1], None]).flatten(3).type_as(x)


def get_inputs():
    return [torch.randn(B, S, H, D)]


def get_init_inputs():
    return [D, 10000.0, 128]
