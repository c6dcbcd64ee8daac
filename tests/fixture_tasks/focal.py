"""Focal loss of binary logits, mean over all."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"B": 8, "C": 16}, "ragged": {"B": 7, "C": 13}}
B = 32768
C = 128


class Model(nn.Module):
    def __init__(self, alpha, gamma):
        super().__init__()
        self.alpha, self.gamma = alpha, gamma

    def forward(self, logits, target):
        p = torch.sigmoid(logits)
        ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        pt = p * target + (1 - p) * (1 - target)
        at = self.alpha * target + (1 - self.alpha) * (1 - target)
        return (at * (1 - pt) ** self.gamma * ce).sum(dim=1)


def get_inputs():
    return [torch.randn(B, C), (torch.rand(B, C) > 0.7).float()]


def get_init_inputs():
    return [0.25, 2.0]
