"""Batch norm of rows in training, leaky ReLU; the running statistics move, as in any training step."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"M": 16, "N": 12}, "ragged": {"M": 13, "N": 7}}
M = 1024
N = 1024


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features, momentum=0.1)

    def forward(self, x):
        return F.leaky_relu(self.norm(x), 0.1)


def get_inputs():
    return [torch.randn(M, N)]


def get_init_inputs():
    return [N]
