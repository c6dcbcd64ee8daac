"""Two parts of a batch, weighted, shifted and scaled. The settings come in a dictionary, and so does the batch."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"ROWS": 4, "WIDTH": 32}, "ragged": {"ROWS": 3, "WIDTH": 37}}
ROWS = 8192
WIDTH = 2048


class Model(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(settings["width"]))
        self.scales = settings["scales"]

    def forward(self, batch, gain):
        return (batch["left"] * self.scales[0] + batch["right"] * self.scales[1] + self.shift) * gain


def get_inputs():
    return [{"left": torch.randn(ROWS, WIDTH), "right": torch.randn(ROWS, WIDTH)}, 2.0]


def get_init_inputs():
    return [{"width": WIDTH, "scales": [0.5, 1.5]}]
