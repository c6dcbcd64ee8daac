"""Softplus of a sum times a sign, on a transposed and an expanded input."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"A": 16, "B": 32, "C": 16}, "ragged": {"A": 13, "B": 5, "C": 11}}
A, B, C = 64, 128, 96


class Model(nn.Module):
    def forward(self, x, y):
        return F.softplus(x.transpose(0, 1) + y, beta=1.0, threshold=20.0) * torch.sign(y)


def get_inputs():
    return [torch.randn(B, A, C), torch.randn(B, 1).expand(B, C)]


def get_init_inputs():
    return []
