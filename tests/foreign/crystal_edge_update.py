import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    """Alloy lattice: a site hears its neighbours, the more softly the more the bond damps.

    site: (sites, width); near: (sites, neighbours, width); bond: (sites, neighbours, bond_width)
    """

    def __init__(self, width, bond_width):
        super().__init__()
        self.here = nn.Linear(width, width)
        self.there = nn.Linear(width, width, bias=False)
        self.damping = nn.Linear(bond_width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, site, near, bond):
        word = F.silu(self.here(site)[:, None] + self.there(near))
        loudness = torch.exp(-F.softplus(self.damping(bond)))
        return self.norm(site + (word * loudness).mean(dim=1))


sites, neighbours = 24000, 14
width, bond_width = 80, 30


def get_inputs():
    site = torch.randn(sites, width)
    near = torch.randn(sites, neighbours, width)
    bond = torch.rand(sites, neighbours, bond_width)
    return [site, near, bond]


def get_init_inputs():
    return [width, bond_width]
