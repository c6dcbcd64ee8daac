"""Linear layer, tanh GELU, layer norm, residual."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"rows": 2, "dim": 32}, "ragged": {"rows": 3, "dim": 19}}

class Model(nn.Module):
    """Linear, GELU by tanh, layer norm, residual."""

    def __init__(self, dim):
        super().__init__()
        self.fc = nn.Linear(dim, dim)
        self.ln = nn.LayerNorm(dim)

    def forward(self, x):
        return x + self.ln(torch.nn.functional.gelu(self.fc(x), approximate="tanh"))


rows = 1024
dim = 768


def get_inputs():
    return [torch.randn(rows, dim)]


def get_init_inputs():
    return [dim]
