"""Several steps of an Elman cell."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 16, "T": 4, "D": 16, "H": 16}, "ragged": {"B": 5, "T": 3, "D": 13, "H": 11}}
B = 256
T = 16
D = 128
H = 128


class Model(nn.Module):
    def __init__(self, inputs, hidden):
        super().__init__()
        self.wx = nn.Linear(inputs, hidden)
        self.wh = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x):
        h = x.new_zeros(x.shape[0], self.wh.weight.shape[0])
        steps = []
        for t in range(x.shape[1]):
            h = torch.tanh(self.wx(x[:, t]) + self.wh(h))
            steps.append(h)
        return torch.stack(steps, 1), h


def get_inputs():
    return [torch.randn(B, T, D)]


def get_init_inputs():
    return [D, H]
