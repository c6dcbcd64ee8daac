import math
import torch
import torch.nn as nn

N_COORDS = 1 << 18
HIDDEN = 512
OMEGA_0 = 30.0


class SineLayer(nn.Module):
    def __init__(self, in_features, out_features, omega_0):
        super().__init__()
        self.omega_0 = omega_0
        self.linear = nn.Linear(in_features, out_features)
        with torch.no_grad():
            bound = math.sqrt(6 / in_features) / omega_0
            self.linear.weight.uniform_(-bound, bound)

    def forward(self, input):
        return torch.sin(self.omega_0 * self.linear(input))


class Model(nn.Module):
    """hidden SIREN layer followed by the linear read-out of a scalar field, squashed to (-1, 1)"""

    def __init__(self, hidden, omega_0):
        super().__init__()
        self.body = SineLayer(hidden, hidden, omega_0)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, coords_feat):
        return torch.tanh(self.readout(self.body(coords_feat))).squeeze(-1)


def get_inputs():
    return [torch.rand(N_COORDS, HIDDEN) * 2 - 1]


def get_init_inputs():
    return [HIDDEN, OMEGA_0]
