import torch
import torch.nn as nn
import torch.nn.functional as F

# HiFi-GAN like upsampling stage
slope = 0.1
batch_size = 8
channels = 512
mel_frames = 400


class Model(nn.Module):
    def __init__(self, channels, slope):
        super().__init__()
        self.slope = slope
        self.up = nn.ConvTranspose1d(channels, channels // 2, 16, stride=8, padding=4)

    def forward(self, x):
        x = F.leaky_relu(x, self.slope)
        x = self.up(x)
        x = F.leaky_relu(x, self.slope)
        return torch.tanh(x)


def get_inputs():
    return [torch.randn(batch_size, channels, mel_frames)]


def get_init_inputs():
    return [channels, slope]
