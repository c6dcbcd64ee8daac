"""
First layer of the goalkeeper model.

Shots come as (shot, colour, frame, row, column). Time keeps its length because a dive lasts only
eight frames; rows and columns are halved twice. There is a learned factor per map at the end, which
old notebooks call "attention". It is not, but the name is in the saved weights.
"""
import torch
from torch import nn

SHOTS = 9
FRAMES = 28
ROWS, COLUMNS = 208, 232
MAPS = 60


class Model(nn.Module):
    def __init__(self, maps):
        super().__init__()
        self.dive = nn.Conv3d(3, maps, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2))
        self.norm = nn.GroupNorm(6, maps)
        self.attention = nn.Parameter(torch.ones(maps, 1, 1, 1))

    def forward(self, shot):
        out = nn.functional.relu6(self.norm(self.dive(shot)))
        out = nn.functional.max_pool3d(out, (1, 2, 2))
        return out * self.attention


def get_inputs():
    return [torch.rand(SHOTS, 3, FRAMES, ROWS, COLUMNS)]


def get_init_inputs():
    return [MAPS]
