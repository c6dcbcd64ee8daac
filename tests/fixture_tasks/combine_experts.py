"""Each token's weighted sum of its experts' rows: out[t] = sum over k of w[t, k] * rows[index[t, k]]."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"T": 8, "K": 2, "R": 12, "D": 32}, "ragged": {"T": 5, "K": 3, "R": 7, "D": 27}}
T = 8192
K = 2
R = 16384
D = 2048


class Model(nn.Module):
    def forward(self, rows, index, weight):
        return (rows[index] * weight[..., None]).sum(1)


def get_inputs():
    return [torch.randn(R, D), torch.randint(0, R, (T, K)), torch.rand(T, K)]


def get_init_inputs():
    return []
