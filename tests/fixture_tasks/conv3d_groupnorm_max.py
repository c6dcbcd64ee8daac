"""3-D convolution, group norm, gate, max pool, global maximum."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"out_channels": 8}, "ragged": {"in_channels": 13, "out_channels": 12, "depth": 11, "height": 10, "width": 10}}
batch_size = 4
in_channels = 8
out_channels = 16
depth, height, width = 8, 16, 16
kernel_size = 3
groups = 4


class Model(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, groups, bias_shape):
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size, padding=1)
        self.group_norm = nn.GroupNorm(groups, out_channels)
        self.bias = nn.Parameter(torch.randn(bias_shape))
        self.pool = nn.MaxPool3d(2)

    def forward(self, x):
        x = self.conv(x)
        x = self.group_norm(x)
        x = torch.tanh(x) * torch.sigmoid(x) + self.bias
        x = self.pool(x)
        return torch.amax(x, dim=(2, 3, 4))


def get_inputs():
    return [torch.randn(batch_size, in_channels, depth, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, groups, (out_channels, 1, 1, 1)]
