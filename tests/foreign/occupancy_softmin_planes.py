"""Occupancy head. Labels compete per voxel (softmin of energies); we report, for each label, the best probability along x."""
from __future__ import annotations

import torch
from torch import nn

BATCH_SIZE = 6
FEATURES = 40
LABELS = 20
GRID_Z, GRID_Y, GRID_X = 16, 100, 100


class Model(nn.Module):
    def __init__(self, features: int, labels: int) -> None:
        super().__init__()
        self.to_energy = nn.ConvTranspose3d(features, labels, (2, 2, 2), stride=(2, 2, 2), bias=False)
        self.label_energy = nn.Parameter(torch.zeros(labels).view(1, labels, 1, 1, 1))

    def forward(self, voxels: torch.Tensor) -> torch.Tensor:
        energy = self.to_energy(voxels) * 4.0 + self.label_energy
        probability = torch.softmax(energy.neg(), dim=1)
        best = probability.amax(dim=4)
        return best.clamp(min=1e-6).log()


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(BATCH_SIZE, FEATURES, GRID_Z, GRID_Y, GRID_X)]


def get_init_inputs() -> list[int]:
    return [FEATURES, LABELS]
