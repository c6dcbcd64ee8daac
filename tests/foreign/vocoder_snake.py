import torch
import torch.nn as nn

# Snake activation, https://arxiv.org/abs/2006.08195, inside an anti-alias free AMP block

BATCH, CHANNELS, SAMPLES = 16, 96, 65536


class Snake1d(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x):
        return x + (1.0 / (self.alpha + 1e-9)) * torch.sin(self.alpha * x).pow(2)


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.act = Snake1d(channels)
        self.conv = nn.Conv1d(channels, channels, 3, dilation=3, padding=3)

    def forward(self, x):
        return self.conv(self.act(x)) + x


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SAMPLES)]


def get_init_inputs():
    return [CHANNELS]
