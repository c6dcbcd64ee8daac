from functools import partial

import torch
from torch import nn

SHEETS = 96
SIDE, TILE = 240, 12
WIDTH = 640

Thin = partial(nn.Linear, bias=False)


class Model(nn.Module):
    """Scanned maps are cut into tiles. A code per row and one per column say where a tile lay; each sheet becomes a vector."""

    def __init__(self, tile, width, tiles_per_side):
        super().__init__()
        self.cut = nn.Conv2d(3, width, tile, tile)
        self.row_code = nn.Parameter(0.1 * torch.randn(width, tiles_per_side, 1))
        self.column_code = nn.Parameter(0.1 * torch.randn(width, 1, tiles_per_side))
        self.summary = Thin(width, width // 4)

    def forward(self, sheet):
        tiles = self.cut(sheet) + self.row_code + self.column_code
        whole = nn.functional.silu(tiles).mean((2, 3))
        return self.summary(whole).sigmoid()


def get_inputs():
    return [torch.randn(SHEETS, 3, SIDE, SIDE)]


def get_init_inputs():
    return [TILE, WIDTH, SIDE // TILE]
