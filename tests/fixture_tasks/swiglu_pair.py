"""SwiGLU of two tensors: silu(gate) times up."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"T": 8, "H": 32}, "ragged": {"T": 5, "H": 27}}
T = 8192
H = 11008


class Model(nn.Module):
    def forward(self, gate, up):
        return F.silu(gate) * up


def get_inputs():
    return [torch.randn(T, H), torch.randn(T, H)]


def get_init_inputs():
    return []
