"""Zonal means of a convolved field. Axis 2 is latitude, axis 3 longitude."""

import torch
from torch import nn

LAT, LON = 361, 720
N_VARS = 20
N_HIDDEN = 48
N_TIMES = 8


class Model(nn.Module):
    def __init__(self, n_vars, n_hidden):
        super().__init__()
        self.conv = nn.Conv2d(n_vars, n_hidden, kernel_size=(3, 3), padding="same", padding_mode="zeros")
        self.lat_weight = nn.Parameter(torch.ones(1, n_hidden, 1))

    def forward(self, field):
        y = nn.functional.mish(self.conv(field))
        zonal = y.mean(dim=3)
        return zonal * self.lat_weight - zonal.mean(dim=2, keepdim=True)


def get_inputs():
    return [torch.randn(N_TIMES, N_VARS, LAT, LON)]


def get_init_inputs():
    return [N_VARS, N_HIDDEN]
