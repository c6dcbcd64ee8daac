import torch
import torch.nn as nn

N = 64
C = 256
C_OUT = 512
SPATIAL = 64


class GeM(nn.Module):
    """Generalised mean pooling; p is one trainable number."""

    def __init__(self, p=3.0, eps=1e-6):
        super().__init__()
        self.p = nn.Parameter(torch.ones(1) * p)
        self.eps = eps

    def forward(self, x):
        return x.clamp(min=self.eps).pow(self.p).mean(dim=(-2, -1)).pow(1.0 / self.p)


class Model(nn.Module):
    """Retrieval descriptor: 1x1 convolution, GeM pooling, L2 norm."""

    def __init__(self, c, c_out):
        super().__init__()
        self.reduce = nn.Conv2d(c, c_out, 1)
        self.gem = GeM()

    def forward(self, fmap):
        d = self.gem(self.reduce(fmap))
        return d / (d.pow(2).sum(dim=1, keepdim=True).sqrt() + 1e-6)


def get_inputs():
    return [torch.randn(N, C, SPATIAL, SPATIAL)]


def get_init_inputs():
    return [C, C_OUT]
