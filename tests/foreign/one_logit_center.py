import torch
import torch.nn as nn

n_rows = 5000
n_feat = 300


class Model(nn.Module):
    """Somebody once added a `per-row standardisation` behind a head with a single unit. The
    standardised term is therefore always zero, but the checkpoint (and the API) still has it."""

    def __init__(self, n_feat):
        super().__init__()
        self.head = nn.Linear(n_feat, 1)
        self.mix = nn.Parameter(torch.tensor(0.9))

    def forward(self, x):
        y = self.head(x)
        centred = y - y.mean(dim=1, keepdim=True)
        return self.mix * torch.tanh(y) + centred


def get_inputs():
    return [torch.randn(n_rows, n_feat)]


def get_init_inputs():
    return [n_feat]
