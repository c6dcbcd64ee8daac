import torch
import torch.nn as nn

# range x doppler x angle
cube = (128, 64, 64)
n_frames = 16
ch = 16


class Model(nn.Module):
    """Max over the range axis of a convolved radar cube, squashed and shifted."""

    def __init__(self, ch):
        super().__init__()
        self.filt = nn.Conv3d(1, ch, 5, padding=2)
        self.noise_floor = nn.Parameter(torch.full((ch, 1, 1), 0.3))

    def forward(self, c):
        p = self.filt(c).square()
        p = torch.amax(p, dim=2)
        p = 10.0 * torch.log10(p + 1e-3)
        return torch.relu(p - self.noise_floor)


def get_inputs():
    return [torch.randn(n_frames, 1, *cube)]


def get_init_inputs():
    return [ch]
