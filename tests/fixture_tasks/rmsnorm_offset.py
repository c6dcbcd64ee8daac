"""RMS norm in float32 whose weight is an offset from one."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"batch": 2, "seq": 32, "hidden": 16}, "ragged": {"batch": 3, "seq": 19, "hidden": 11}}
batch = 8
seq = 512
hidden = 2048


class Model(nn.Module):
    """RMS norm with an offset on its weight, computed in float32."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden_size))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * (1.0 + self.weight.float())).type_as(x)


def get_inputs():
    return [torch.randn(batch, seq, hidden)]


def get_init_inputs():
    return [hidden]
