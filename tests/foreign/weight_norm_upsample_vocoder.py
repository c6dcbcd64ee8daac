import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import weight_norm


class Model(nn.Module):
    """From the maps of a flute note to its sound, three samples per frame."""

    def __init__(self, plan):
        super().__init__()
        maps, times = plan["maps"], plan["times"]
        self.stretch = weight_norm(nn.ConvTranspose1d(maps, maps // 2, 3 * times, times, padding=times))
        self.sound = weight_norm(nn.Conv1d(maps // 2, 1, 5, padding=2, bias=False))
        self.volume = plan["volume"]

    def forward(self, note):
        y = nn.functional.elu(self.stretch(note))
        y = self.sound(y) * self.volume
        return y / (1 + y.abs())


plan = {"maps": 72, "times": 3, "volume": 2.0}
notes = 15
frames = 15_000


def get_inputs():
    return [torch.randn(notes, plan["maps"], frames)]


def get_init_inputs():
    return [plan]
