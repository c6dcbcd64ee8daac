import torch
import torch.nn as nn
from typing import NamedTuple


class Shapes(NamedTuple):
    batch: int = 512
    hidden: int = 4096
    latent: int = 1024


SHAPES = Shapes()


class Model(nn.Module):
    """KL divergence of a diagonal Gaussian to the standard normal, per sample (noise is given as an input; also returns z)."""

    def __init__(self, hidden, latent):
        super().__init__()
        self.fc_mu = nn.Linear(hidden, latent)
        self.fc_logvar = nn.Linear(hidden, latent)

    def forward(self, h, noise):
        mu = self.fc_mu(h)
        logvar = self.fc_logvar(h).clamp(-8.0, 8.0)
        z = mu + torch.exp(0.5 * logvar) * noise
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)
        return z, kl


def get_inputs():
    return [torch.randn(SHAPES.batch, SHAPES.hidden), torch.randn(SHAPES.batch, SHAPES.latent)]


def get_init_inputs():
    return [SHAPES.hidden, SHAPES.latent]
