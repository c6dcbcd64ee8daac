"""A recurrent layer, of whose steps the largest are kept."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 2, "T": 4}, "ragged": {"B": 3, "T": 5}}
B = 32
T = 8
WIDE = 16
HIDDEN = 24


class Model(nn.Module):
    def __init__(self, wide, hidden):
        super().__init__()
        self.rnn = nn.GRU(wide, hidden, batch_first=True)

    def forward(self, x):
        return torch.amax(self.rnn(x)[0], dim=1)


def get_inputs():
    return [torch.randn(B, T, WIDE)]


def get_init_inputs():
    return [WIDE, HIDDEN]
