"""Rows scaled into the range of float8 e4m3 and rounded to it: codes and scales."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"T": 8, "D": 32}, "ragged": {"T": 5, "D": 27}}
T = 8192
D = 4096


class Model(nn.Module):
    def forward(self, x):
        scale = x.abs().amax(-1, keepdim=True).clamp_min(1e-6) / 448.0
        return (x / scale).to(torch.float8_e4m3fn), scale


def get_inputs():
    return [torch.randn(T, D)]


def get_init_inputs():
    return []
