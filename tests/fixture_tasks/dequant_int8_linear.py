"""A linear layer whose weight is int8 with one scale for each output."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 16, "K": 32, "N": 16}, "ragged": {"M": 9, "K": 21, "N": 19}}
M = 256
K = 4096
N = 4096


class Model(nn.Module):
    def forward(self, x, code, scale):
        return x @ (code.to(x.dtype) * scale[:, None]).t()


def get_inputs():
    return [torch.randn(M, K), torch.randint(-127, 128, (N, K)).to(torch.int8), torch.rand(N) * 0.01]


def get_init_inputs():
    return []
