"""A gated recurrent cell: a nested tuple of inputs with a number in it, nested outputs."""

import torch
import torch.nn as nn

INPUT_SETS = {'small': {'B': 4, 'I': 8, 'H': 16}, 'ragged': {'B': 3, 'I': 7, 'H': 9}}
B = 2048
I = 512
H = 1024


class Model(nn.Module):
    def __init__(self, in_features, hidden):
        super().__init__()
        self.x2h = nn.Linear(in_features, 3 * hidden)
        self.h2h = nn.Linear(hidden, 3 * hidden)

    def forward(self, x, state):
        h, extra = state
        xr, xz, xn = self.x2h(x).chunk(3, dim=-1)
        hr, hz, hn = self.h2h(h).chunk(3, dim=-1)
        r, z = torch.sigmoid(xr + hr), torch.sigmoid(xz + hz)
        n = torch.tanh(xn + r * hn)
        new = (1 - z) * n + z * h + extra["shift"] if isinstance(extra, dict) else (1 - z) * n + z * h + extra
        return new, (r, z)


def get_inputs():
    return [torch.randn(B, I), (torch.randn(B, H), 0.25)]


def get_init_inputs():
    return [I, H]
