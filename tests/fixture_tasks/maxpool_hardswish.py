"""Overlapping max pooling with padding, hardswish."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"B": 2, "C": 3, "H": 8, "W": 8}, "ragged": {"B": 1, "C": 3, "H": 9, "W": 7}}
B = 32
C = 64
H = 96
W = 96


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)

    def forward(self, x):
        return F.hardswish(self.pool(x))


def get_inputs():
    return [torch.randn(B, C, H, W)]


def get_init_inputs():
    return []
