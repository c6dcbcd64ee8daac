import math
import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Free energy of a Gaussian-softplus RBM-like model.

        F(v) = 0.5 * ||v - a||^2 / d  -  sum_j softplus(w_j . v + c_j) / sqrt(m)
    """

    def __init__(self, visible, units):
        super().__init__()
        self.visible = visible
        self.a = nn.Parameter(torch.zeros(visible))
        self.hidden = nn.Linear(visible, units)
        self.norm = 1.0 / math.sqrt(units)

    def forward(self, v):
        quad = 0.5 * ((v - self.a) ** 2).sum(1) / self.visible
        act = nn.functional.softplus(self.hidden(v))
        return quad - self.norm * act.sum(1)


batch = 4 * 1024
visible = 28 * 28
units = 2048


def get_inputs():
    return [torch.rand(batch, visible)]


def get_init_inputs():
    return [visible, units]
