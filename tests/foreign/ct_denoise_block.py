"""CT denoising: plain 3-D residual block with instance norm."""
from collections import OrderedDict

import torch
import torch.nn as nn

n, c = 2, 32
depth, height, width = 96, 128, 128


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.body = nn.Sequential(OrderedDict([
            ("conv", nn.Conv3d(c, c, 3, padding=1, bias=False)),
            ("inorm", nn.InstanceNorm3d(c, affine=True)),
            ("act", nn.LeakyReLU(0.01, inplace=True)),
        ]))
        self.residual_scale = nn.Parameter(torch.tensor([0.2]))

    def forward(self, vol):
        return vol + self.residual_scale * self.body(vol)


def get_inputs():
    return [torch.randn(n, c, depth, height, width)]


def get_init_inputs():
    return [c]
