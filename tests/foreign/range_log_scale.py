import math

import torch
import torch.nn as nn


class LogScale(nn.Module):
    """Maps 0..1 to ``near``..``far`` metres so that equal steps are equal ratios; gives the slope as well."""

    def __init__(self, near, far):
        super(LogScale, self).__init__()
        self.near = near
        self.span = math.log(far / near)

    def forward(self, u):
        metres = self.near * torch.exp(self.span * u)
        return metres, self.span * metres


class Model(nn.Module):
    def __init__(self, n_maps, near, far):
        super(Model, self).__init__()
        self.read = nn.Conv2d(n_maps, 1, 5, padding=2)
        self.scale = LogScale(near, far)

    def forward(self, maps):
        return self.scale(torch.sigmoid(self.read(maps)))


n_frames = 10
n_maps = 20
rows, columns = 200, 600


def get_inputs():
    return [torch.randn(n_frames, n_maps, rows, columns)]


def get_init_inputs():
    return [n_maps, 0.5, 60.0]
