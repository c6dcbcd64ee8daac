"""Feature-wise modulation of a convolved field by a station vector. About 6 GiB at run time."""
import torch
import torch.nn as nn

HEIGHT = 720
WIDTH = 1440
LEVELS = 64
MEMBERS = 6
STATION = 32


class Model(nn.Module):
    def __init__(self, levels, station):
        super().__init__()
        self.depthwise = nn.Conv2d(levels, levels, kernel_size=3, padding=1, groups=levels)
        self.to_gamma = nn.Linear(station, levels)
        self.to_beta = nn.Linear(station, levels)

    def forward(self, field, station):
        gamma = torch.tanh(self.to_gamma(station)).unsqueeze(-1).unsqueeze(-1)
        beta = self.to_beta(station).unsqueeze(-1).unsqueeze(-1)
        out = self.depthwise(field)
        out = out * gamma + beta
        return torch.nn.functional.silu(out)


def get_inputs():
    return [torch.randn(MEMBERS, LEVELS, HEIGHT, WIDTH), torch.randn(MEMBERS, STATION)]


def get_init_inputs():
    return [LEVELS, STATION]
