import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Fused ReGLU: one product of width 2 * ``n_hidden``, whose halves are the value and the gate.

    The gate is shifted by a learned number so that at the start about two thirds of it are open.
    The mean activation over the hidden units is returned as well (it is logged for dead-unit alarms).
    """

    def __init__(self, n_model: int, n_hidden: int):
        super().__init__()
        self.wi = nn.Linear(n_model, 2 * n_hidden, bias=False)
        self.shift = nn.Parameter(torch.tensor(0.4))
        self.n_hidden = n_hidden

    def forward(self, x: torch.Tensor):
        both = self.wi(x)
        value, gate = both[:, : self.n_hidden], both[:, self.n_hidden :]
        y = value * torch.relu(gate + self.shift)
        return y, y.mean(dim=-1)


n_rows = 8192
n_model = 2048
n_hidden = 16384


def get_inputs():
    return [torch.randn(n_rows, n_model)]


def get_init_inputs():
    return [n_model, n_hidden]
