import torch
import torch.nn as nn

# periodic activation for bells and engines: a straight line with ripples, whose pitch is trained per map
SOUNDS, N_CHANNELS, SAMPLES = 15, 90, 70_000


class Ripple(nn.Module):
    def __init__(self, n_channels):
        super().__init__()
        self.log_pitch = nn.Parameter(0.5 * torch.randn(n_channels, 1))

    def forward(self, x):
        pitch = self.log_pitch.exp()
        return x - torch.cos(pitch * x) / pitch


class Model(nn.Module):
    def __init__(self, n_channels):
        super().__init__()
        self.filter = nn.Conv1d(n_channels, n_channels, 5, dilation=2, padding=4)
        self.ripple = Ripple(n_channels)

    def forward(self, sound):
        return 0.5 * (sound + self.ripple(self.filter(sound)))


def get_inputs():
    return [torch.randn(SOUNDS, N_CHANNELS, SAMPLES)]


def get_init_inputs():
    return [N_CHANNELS]
