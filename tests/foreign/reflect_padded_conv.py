import torch
import torch.nn as nn
import torch.nn.functional as F

B, C, N = 12, 96, 200


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv = nn.Conv2d(c, c, 3)
        self.scale = nn.Parameter(torch.full((c, 1, 1), 0.1))

    def forward(self, x):
        # reflection instead of zeros: no dark frame around the result
        y = self.conv(F.pad(x, (1, 1, 1, 1), mode="reflect"))
        return x + self.scale * F.leaky_relu(y, 0.2)


def get_inputs():
    return [torch.randn(B, C, N, N)]


def get_init_inputs():
    return [C]
