"""Pointwise part of a Fourier neural operator layer (the spectral part is elsewhere)."""
import torch
import torch.nn as nn


class Model(nn.Module):

    def __init__(self, width, modes_scale):
        super(Model, self).__init__()
        self.w = nn.Conv1d(width, width, 1)
        self.register_buffer('modes_scale', torch.tensor(float(modes_scale)))

    def forward(self, v, k):
        # v: field on the grid [B, width, n], k: what the spectral branch gave
        s = self.w(v) + k * self.modes_scale
        return torch.nn.functional.gelu(s)


resolution = 8192
width = 64
batchsize = 20

def get_inputs():
    a = torch.randn(batchsize, width, resolution)
    b = torch.randn(batchsize, width, resolution)
    return [a, b]

def get_init_inputs():
    return [width, 0.5]
