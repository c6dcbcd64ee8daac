"""What rows are off their mean, on average: nothing, as numbers go."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"T": 8, "D": 32}, "ragged": {"T": 5, "D": 27}}
T, D = 4096, 512


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.offset = nn.Parameter(torch.randn(width))

    def forward(self, x):
        low = torch.minimum(x, self.offset).mean(dim=1)
        off = (low - low.mean()).mean()
        return torch.nn.functional.logsigmoid(off) * 3.0


def get_inputs():
    return [torch.randn(T, D)]


def get_init_inputs():
    return [D]
