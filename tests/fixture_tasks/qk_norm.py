"""RMS norm of each head's queries and keys, with weights of their own."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"T": 4, "HQ": 4, "HK": 2, "D": 16}, "ragged": {"T": 3, "HQ": 3, "HK": 1, "D": 13}}
T = 8192
HQ = 32
HK = 8
D = 128


class Model(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.q_weight = nn.Parameter(torch.ones(dim))
        self.k_weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, q, k):
        def norm(x, w):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * w

        return norm(q, self.q_weight), norm(k, self.k_weight)


def get_inputs():
    return [torch.randn(T, HQ, D), torch.randn(T, HK, D)]


def get_init_inputs():
    return [D, 1e-6]
