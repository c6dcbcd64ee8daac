"""Product of int8 matrices with a scale for each row and column, and a bias."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 2, "N": 32, "K": 16}, "ragged": {"M": 3, "N": 5, "K": 5}}
M = 256
N = 512
K = 512


class Model(nn.Module):
    def forward(self, a, b, sa, sb, bias):
        return (a.double() @ b.double().t()).float() * sa * sb + bias


def get_inputs():
    return [torch.randint(-128, 128, (M, K), dtype=torch.int8), torch.randint(-128, 128, (N, K), dtype=torch.int8),
            torch.rand(M, 1) * 0.01, torch.rand(1, N) * 0.01, torch.randn(N)]


def get_init_inputs():
    return []
