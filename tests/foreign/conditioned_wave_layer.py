"""One layer of the creek-noise synthesiser.

In:  wave (clips, width, samples), time of day (clips, day), weather (clips, 2 * width, samples)
Out: the wave for the next layer, and what this layer adds to the mix.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

CLIPS = 9
WIDTH = 60
DAY = 320
SAMPLES = 16000 * 3


class Model(nn.Module):
    def __init__(self, width, day, stretch=6):
        super().__init__()
        self.echo = nn.Conv1d(width, 2 * width, 3, padding=stretch, dilation=stretch)
        self.hour = nn.Linear(day, 2 * width)
        self.carry = nn.Conv1d(width, width, 1)
        self.emit = nn.Conv1d(width, 1, 1)

    def forward(self, wave, time_of_day, weather):
        scale = 1 + self.hour(time_of_day)[:, :, None]
        inside = F.glu(torch.addcmul(weather, self.echo(wave), scale), dim=1)
        return torch.lerp(wave, self.carry(inside), 0.3), self.emit(inside)


def get_inputs():
    return [
        torch.randn(CLIPS, WIDTH, SAMPLES),
        torch.randn(CLIPS, DAY),
        torch.randn(CLIPS, 2 * WIDTH, SAMPLES),
    ]


def get_init_inputs():
    return [WIDTH, DAY]
