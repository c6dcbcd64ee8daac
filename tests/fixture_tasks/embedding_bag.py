"""Weighted sums of table rows between offsets."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"ROWS": 8, "DIM": 32, "BAGS": 16, "N": 32}, "ragged": {"ROWS": 13, "DIM": 19, "BAGS": 11, "N": 23}}
ROWS = 5000
DIM = 96
BAGS = 64
N = 1024


class Model(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, dim))

    def forward(self, indices, offsets, weights):
        bag = torch.bucketize(torch.arange(indices.shape[0], device=indices.device), offsets, right=True) - 1
        out = torch.zeros(offsets.shape[0], self.weight.shape[1], device=indices.device, dtype=self.weight.dtype)
        return out.index_add(0, bag, self.weight[indices] * weights[:, None])


def get_inputs():
    offsets = torch.sort(torch.randint(0, N, (BAGS,)))[0]
    offsets[0] = 0
    return [torch.randint(0, ROWS, (N,)), offsets, torch.rand(N)]


def get_init_inputs():
    return [ROWS, DIM]
