import torch
import torch.nn as nn


class Conv3x3(nn.Module):
    """Layer to pad and convolve input"""

    def __init__(self, in_channels, out_channels):
        super(Conv3x3, self).__init__()
        self.conv = nn.Conv2d(int(in_channels), int(out_channels), 3, padding=1)

    def forward(self, x):
        return self.conv(x)


def disp_to_depth(disp, min_depth, max_depth):
    """Convert network's sigmoid output into depth prediction"""
    min_disp = 1 / max_depth
    max_disp = 1 / min_depth
    scaled_disp = min_disp + (max_disp - min_disp) * disp
    return scaled_disp, 1 / scaled_disp


class Model(nn.Module):
    def __init__(self, num_ch, min_depth, max_depth):
        super(Model, self).__init__()
        self.dispconv = Conv3x3(num_ch, 1)
        self.sigmoid = nn.Sigmoid()
        self.min_depth, self.max_depth = min_depth, max_depth

    def forward(self, feat):
        return disp_to_depth(self.sigmoid(self.dispconv(feat)), self.min_depth, self.max_depth)


batch_size = 12
num_ch = 16
height, width = 192, 640


def get_inputs():
    return [torch.randn(batch_size, num_ch, height, width)]


def get_init_inputs():
    return [num_ch, 0.1, 100.0]
