import torch
import torch.nn as nn

# Bike counters: the slow part goes on as it was on average, the quick part is mapped, and its peaks are bounded first
STATIONS = 300
DIRECTIONS = 18
PAST, AHEAD = 360, 72


class Model(nn.Module):
    def __init__(self, past, ahead, window=15):
        super().__init__()
        self.window = window
        self.quick = nn.Linear(past, ahead, bias=False)
        self.drift = nn.Parameter(torch.linspace(0.0, 0.1, ahead))

    def forward(self, counts):
        # counts: (station, direction, hour)
        slow = nn.functional.avg_pool1d(counts, self.window, 1, self.window // 2)
        ahead = self.quick(torch.tanh(counts - slow))
        return ahead + slow.mean(dim=2, keepdim=True) + self.drift


def get_inputs():
    return [torch.randn(STATIONS, DIRECTIONS, PAST)]


def get_init_inputs():
    return [PAST, AHEAD]
