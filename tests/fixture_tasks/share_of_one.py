"""Scores made shares over a single channel: all of them are one, whatever the layer says."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"N": 2, "H": 9, "W": 8}, "ragged": {"N": 3, "H": 7, "W": 11}}
N, C, H, W = 16, 24, 96, 96


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.score = nn.Conv2d(channels, 1, 1)

    def forward(self, x):
        share = torch.softmax(torch.tanh(self.score(x)), dim=1)
        return F.silu(share) * 2.0


def get_inputs():
    return [torch.randn(N, C, H, W)]


def get_init_inputs():
    return [C]
