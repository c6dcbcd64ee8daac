"""Batch norm by the batch's own statistics, ELU."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"M": 32, "N": 16}, "ragged": {"M": 37, "N": 11}}
M = 8192
N = 4096


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.BatchNorm1d(features, track_running_stats=False)

    def forward(self, x):
        return F.elu(self.norm(x))


def get_inputs():
    return [torch.randn(M, N)]


def get_init_inputs():
    return [N]
