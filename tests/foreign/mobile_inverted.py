import torch
import torch.nn as nn

PHOTOS = 28
WIDTH = 30
TIMES = 5
SIDE = 112


def frozen_norm(width):
    norm = nn.BatchNorm2d(width)
    nn.init.uniform_(norm.running_mean, -0.2, 0.2)
    nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return norm.eval()


class Model(nn.Module):
    """Many maps inside, few outside: the wide part is filtered map by map and only the narrow part is kept."""

    def __init__(self, width, times):
        super().__init__()
        n = times * width
        self.wide = nn.Sequential(nn.Conv2d(width, n, 1), nn.Conv2d(n, n, 5, padding=2, groups=n), nn.Hardswish())
        self.narrow = nn.Conv2d(n, width, 1, bias=False)
        self.norm = frozen_norm(width)

    def forward(self, photo):
        return self.norm(self.narrow(self.wide(photo))) + photo


def get_inputs():
    return [torch.randn(PHOTOS, WIDTH, SIDE, SIDE)]


def get_init_inputs():
    return [WIDTH, TIMES]
