import torch
import torch.nn as nn


class Model(nn.Module):
    """Height profile of a skyline: maps are doubled in size, made positive, summed over the width; the profile is normalised
    over the height and turned into bumps of height one."""

    def __init__(self, n_in, n_out, height):
        super(Model, self).__init__()
        self.enlarge = nn.ConvTranspose2d(n_in, n_out, 4, stride=2, padding=1)
        self.level = nn.LayerNorm(2 * height)

    def forward(self, maps):
        profile = nn.functional.softplus(self.enlarge(maps), beta=2.0).sum(-1)
        return torch.exp(-self.level(profile).square())


n_streets = 56
n_in, n_out = 44, 60
height, width = 72, 144


def get_inputs():
    return [torch.rand(n_streets, n_in, height, width)]


def get_init_inputs():
    return [n_in, n_out, height]
