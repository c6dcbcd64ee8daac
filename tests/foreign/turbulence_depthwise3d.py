"""Sub-grid closure: a learned depthwise filter of the resolved field, tau = G*(u u) - (G*u)(G*u), less a third of its sum."""
import torch
import torch.nn as nn

SNAPSHOTS = 6
COMPONENTS = 3
EDGE = 160
C_SMAG = 0.17


class Model(nn.Module):
    def __init__(self, components, c):
        super().__init__()
        self.G = nn.Conv3d(components, components, 5, padding=2, groups=components, bias=False)
        self.c = c

    def forward(self, u):
        filtered = self.G(u)
        tau = self.G(u * u) - filtered * filtered
        k = tau.sum(dim=1, keepdim=True)
        return (self.c ** 2) * (tau - k / 3)


def get_inputs():
    return [torch.randn(SNAPSHOTS, COMPONENTS, EDGE, EDGE, EDGE)]


def get_init_inputs():
    return [COMPONENTS, C_SMAG]
