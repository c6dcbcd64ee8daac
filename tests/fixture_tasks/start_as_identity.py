"""A gate whose product begins as the identity and whose biases begin as zeros and ones, as an LSTM's do."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 8, "N": 32}, "ragged": {"M": 5, "N": 27}}
M = 4096
N = 512


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.mix = nn.Parameter(torch.eye(features))
        self.bias = nn.Parameter(torch.cat([torch.zeros(features // 2), torch.ones(features - features // 2)]))

    def forward(self, x):
        return torch.sigmoid(x @ self.mix + self.bias) * x


def get_inputs():
    return [torch.randn(M, N)]


def get_init_inputs():
    return [N]
