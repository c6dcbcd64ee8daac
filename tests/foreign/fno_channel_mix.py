"""What happens between two Fourier layers of our river model: the spectral part arrives as an input, level and all."""
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, gauges, level):
        super(Model, self).__init__()
        self.mix = nn.Conv1d(gauges, gauges, 1)
        self.gain = nn.Parameter(torch.ones(gauges, 1))
        self.register_buffer('level', torch.tensor(float(level)))

    def forward(self, river, spectral):
        # both: (season, gauge, hour)
        total = torch.addcmul(self.mix(river), spectral, self.gain)
        return river + torch.nn.functional.gelu(total - self.level)


hours = 6000
gauges = 72
seasons = 24


def get_inputs():
    river = torch.randn(seasons, gauges, hours)
    spectral = torch.randn(seasons, gauges, hours)
    return [river, spectral]


def get_init_inputs():
    return [gauges, 0.5]
