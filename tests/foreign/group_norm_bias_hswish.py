import torch
import torch.nn as nn

# Mobile segmentation: depthwise (dilated), GN, per-channel offset, hard swish, 3x3 average.
BATCH_SIZE = 32
CHANNELS = 192
GROUPS = 24
HEIGHT, WIDTH = 128, 160


class Model(nn.Module):
    def __init__(self, channels, groups):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=2, dilation=2, groups=channels, bias=False)
        self.norm = nn.GroupNorm(groups, channels)
        self.offset = nn.Parameter(torch.zeros(1, channels, 1, 1))
        self.act = nn.Hardswish()
        self.smooth = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)

    def forward(self, x):
        x = self.depthwise(x)
        x = self.norm(x) + self.offset
        return self.smooth(self.act(x))


def get_inputs():
    return [torch.randn(BATCH_SIZE, CHANNELS, HEIGHT, WIDTH)]


def get_init_inputs():
    return [CHANNELS, GROUPS]
