"""Cross-entropy with label smoothing: one number from logits and int64 targets."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {'small': {'N': 8, 'C': 16}, 'ragged': {'N': 7, 'C': 13}}
N = 4096
C = 32000


class Model(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        return F.cross_entropy(logits, target, label_smoothing=self.smoothing)


def get_inputs():
    return [torch.randn(N, C), torch.randint(0, C, (N,))]


def get_init_inputs():
    return [0.1]
