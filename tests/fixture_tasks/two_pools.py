"""Maximum pool minus an average pool that leaves its padding out."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {'small': {'B': 2, 'C': 3, 'H': 8, 'W': 8}, 'ragged': {'B': 1, 'C': 5, 'H': 9, 'W': 7}}
B = 32
C = 64
H = 112
W = 112


class Model(nn.Module):
    def forward(self, x):
        return F.max_pool2d(x, 3, stride=2, padding=1) - F.avg_pool2d(x, 3, stride=2, padding=1, count_include_pad=False)


def get_inputs():
    return [torch.randn(B, C, H, W)]


def get_init_inputs():
    return []
