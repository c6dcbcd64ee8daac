import torch
import torch.nn as nn

# SchNet: expand distances in Gaussians, two dense layers with shifted softplus -> continuous filter
N_EDGES = 500_000
N_GAUSSIANS = 50
N_FILTERS = 128
CUTOFF = 5.0


def shifted_softplus(x):
    return nn.functional.softplus(x) - 0.6931471805599453


class Model(nn.Module):
    def __init__(self, n_gaussians, n_filters, cutoff):
        super().__init__()
        offset = torch.linspace(0.0, cutoff, n_gaussians)
        self.register_buffer("offset", offset)
        self.coeff = -0.5 / (cutoff / (n_gaussians - 1)) ** 2
        self.dense1 = nn.Linear(n_gaussians, n_filters)
        self.dense2 = nn.Linear(n_filters, n_filters)

    def forward(self, dist):
        d = dist.unsqueeze(-1) - self.offset
        g = torch.exp(self.coeff * torch.pow(d, 2))
        return shifted_softplus(self.dense2(shifted_softplus(self.dense1(g))))


def get_inputs():
    return [torch.rand(N_EDGES) * CUTOFF]


def get_init_inputs():
    return [N_GAUSSIANS, N_FILTERS, CUTOFF]
