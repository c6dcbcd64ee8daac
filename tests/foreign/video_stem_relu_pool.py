"""
Stem of an action-recognition network.

Clips are (batch, rgb, time, height, width). Strides are 1 in time and 2 in space. After
the usual conv / bn / relu we pool in space only and rescale by a learnable number per clip
channel, which the original authors called "attention" although it is not.
"""

import torch
from torch import nn

CLIPS = 8
FRAMES = 32
CROP = 224
WIDTH = 64


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv3d(3, width, kernel_size=(3, 7, 7), stride=(1, 2, 2), padding=(1, 3, 3), bias=False)
        self.bn1 = nn.BatchNorm3d(width)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool3d(kernel_size=(1, 3, 3), stride=(1, 2, 2), padding=(0, 1, 1))
        self.attention = nn.Parameter(torch.ones(1, width, 1, 1, 1))

    def forward(self, clip):
        out = self.conv1(clip)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.pool(out)
        return out * self.attention


def get_inputs():
    return [torch.rand(CLIPS, 3, FRAMES, CROP, CROP)]


def get_init_inputs():
    return [WIDTH]
