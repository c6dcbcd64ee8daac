"""Weighted sums of a table's rows by nn.EmbeddingBag, then a bias and a gate."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"ROWS": 20, "DIM": 16, "BAGS": 8, "N": 24}, "ragged": {"ROWS": 13, "DIM": 19, "BAGS": 7, "N": 29}}
ROWS = 3000
DIM = 64
BAGS = 64
N = 512


class Model(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.bag = nn.EmbeddingBag(rows, dim, mode="sum")
        self.bias = nn.Parameter(torch.randn(dim) * 0.1)

    def forward(self, indices, offsets, weights):
        y = self.bag(indices, offsets, per_sample_weights=weights) + self.bias
        return y * torch.sigmoid(y)


def get_inputs():
    offsets = torch.sort(torch.randint(0, N, (BAGS,)))[0]
    offsets[0] = 0
    return [torch.randint(0, ROWS, (N,)), offsets, torch.rand(N)]


def get_init_inputs():
    return [ROWS, DIM]
