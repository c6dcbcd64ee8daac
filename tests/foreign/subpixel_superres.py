import torch
import torch.nn as nn
import torch.nn.functional as F

TIMES = 4
CHANNELS = 60
SMALL = 168
SLIDES = 18


class Model(nn.Module):
    """Microscope slides, sixteen pixels for one. The lamp of each slide is known: its strength and its offset"""

    def __init__(self, channels, times):
        super().__init__()
        self.times = times
        self.paint = nn.Conv2d(channels, times * times, 3, padding=1, bias=False)

    def forward(self, slide, lamp):
        fine = F.pixel_shuffle(self.paint(F.selu(slide)), self.times)
        strength, offset = lamp[:, 0, None, None, None], lamp[:, 1, None, None, None]
        return F.hardsigmoid(fine * strength + offset)


def get_inputs():
    return [torch.randn(SLIDES, CHANNELS, SMALL, SMALL), torch.rand(SLIDES, 2)]


def get_init_inputs():
    return [CHANNELS, TIMES]
