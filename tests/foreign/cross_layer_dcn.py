# Deep & Cross v2, one cross layer with low rank: x0 * (U(V x) + b) + x
import torch
from torch.nn import Linear, Module, Parameter

BATCH = 16_384
WIDTH = 3_072
RANK = 256


class Model(Module):
    def __init__(self, width: int, rank: int):
        super().__init__()
        self.V = Linear(width, rank, bias=False)
        self.U = Linear(rank, width, bias=False)
        self.b = Parameter(torch.zeros(width))

    def forward(self, x0, x):
        u = self.U(self.V(x))
        return torch.add(torch.mul(x0, torch.add(u, self.b)), x)


def get_inputs():
    return [torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)]


def get_init_inputs():
    return [WIDTH, RANK]
