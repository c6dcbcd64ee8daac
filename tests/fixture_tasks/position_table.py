"""Adds a row of a table to each position, under a mask; positions and mask are expanded."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"S": 16, "D": 8}, "ragged": {"S": 13, "D": 19}}
B = 4
H = 4
S = 64
D = 32


class Model(nn.Module):
    """Adds an embedding of positions to each head, under a mask that all heads share."""

    def __init__(self, length, dim):
        super().__init__()
        self.table = nn.Parameter(torch.randn(length, dim))

    def forward(self, x, position_ids, mask):
        return (x + self.table[position_ids][:, None]).masked_fill(mask[..., None], 0.0)


def get_inputs():
    return [torch.randn(B, H, S, D), torch.arange(S).unsqueeze(0).expand(B, S), (torch.rand(B, 1, S) > 0.7).expand(B, H, S)]


def get_init_inputs():
    return [S, D]
