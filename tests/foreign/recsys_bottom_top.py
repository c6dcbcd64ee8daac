import torch
import torch.nn as nn

VISITS = 30_000
COUNTERS = 21
SIZES = (400, 200, 72)


class Ladder(nn.ModuleList):
    """Linear layers of falling width with leaky ReLU between them, none after the last."""

    def __init__(self, n_in, sizes):
        super().__init__(nn.Linear(a, b) for a, b in zip((n_in, *sizes), sizes))

    def forward(self, x):
        *inner, last = self
        for layer in inner:
            x = nn.functional.leaky_relu(layer(x), 0.05)
        return last(x)


class Model(nn.Module):
    """Will the visitor buy? Counters of the visit against the mean embedding of the pages seen, scored as a weighted
    inner product."""

    def __init__(self, counters, sizes):
        super().__init__()
        self.ladder = Ladder(counters, sizes)
        self.weigh = nn.Linear(sizes[-1], 1)

    def forward(self, visit, pages):
        agreement = self.ladder(visit) * pages
        return torch.sigmoid(self.weigh(agreement))


def get_inputs():
    return [torch.rand(VISITS, COUNTERS), torch.randn(VISITS, SIZES[-1])]


def get_init_inputs():
    return [COUNTERS, SIZES]
