import torch
import torch.nn as nn

SAMPLES = 50000
GENES = 2000
FACTORS = 100


class Model(nn.Module):
    """Project single-cell profiles on factors and standardise each factor by hand (no affine, population variance)."""

    def __init__(self, genes, factors):
        super().__init__()
        self.loadings = nn.Parameter(torch.randn(genes, factors) / genes**0.5)

    def forward(self, profiles):
        z = torch.matmul(torch.log1p(profiles), self.loadings)
        z = z - z.mean(dim=0)
        z = z / torch.sqrt((z * z).mean(dim=0) + 1e-4)
        return torch.clamp(z, -10, 10)


def get_inputs():
    return [torch.rand(SAMPLES, GENES)]


def get_init_inputs():
    return [GENES, FACTORS]
