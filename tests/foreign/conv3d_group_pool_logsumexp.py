import torch
import torch.nn as nn

# Protein-ligand grids
GRIDS = 32
ATOM_TYPES = 14
FILTERS = 32
EDGE = 48
N_GROUPS = 4


class Model(nn.Module):
    def __init__(self, atom_types, filters, n_groups):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv3d(atom_types, filters, kernel_size=3, stride=1, padding=1),
            nn.GroupNorm(n_groups, filters),
            nn.ELU(),
            nn.MaxPool3d(2),
        )
        self.temperature = 4.0

    def forward(self, grid):
        f = self.features(grid)
        # soft maximum over all the voxels
        return torch.logsumexp(f * self.temperature, dim=(2, 3, 4)) / self.temperature


def get_inputs():
    return [torch.rand(GRIDS, ATOM_TYPES, EDGE, EDGE, EDGE)]


def get_init_inputs():
    return [ATOM_TYPES, FILTERS, N_GROUPS]
