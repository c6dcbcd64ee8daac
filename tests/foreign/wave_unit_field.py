import torch
import torch.nn as nn

N_POINTS = 1 << 18
UNITS = 480
LOWEST, HIGHEST = 2.0, 40.0


class WaveUnits(nn.Module):
    """cos(pitch_j * (w_j . x) + phase_j); pitches start as a geometric series and are trained"""

    def __init__(self, units, lowest, highest):
        super().__init__()
        self.mix = nn.Parameter(torch.randn(units, units) / units)
        ladder = torch.linspace(0, 1, units)
        self.pitch = nn.Parameter(lowest * (highest / lowest) ** ladder)
        self.phase = nn.Parameter(6.28 * torch.rand(units))

    def forward(self, x):
        return torch.cos(x @ self.mix * self.pitch + self.phase)


class Model(nn.Module):
    """pressure at a point of the room, from the features of the point"""

    def __init__(self, units, lowest, highest):
        super().__init__()
        self.waves = WaveUnits(units, lowest, highest)
        self.loudness = nn.Parameter(torch.randn(units) / units)

    def forward(self, points):
        return nn.functional.softsign(self.waves(points) @ self.loudness)


def get_inputs():
    return [torch.rand(N_POINTS, UNITS) * 2 - 1]


def get_init_inputs():
    return [UNITS, LOWEST, HIGHEST]
