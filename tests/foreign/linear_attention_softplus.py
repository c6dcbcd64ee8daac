import torch
import torch.nn as nn
import torch.nn.functional as F

B = 15
HEADS = 8
STEPS = 8000
WIDTH = 64


class Model(nn.Module):
    """Attention without the square table. Both sides are made positive, so the sums over the steps can be taken first."""

    def __init__(self, floor):
        super().__init__()
        self.floor = floor

    def positive(self, t):
        return F.softplus(t, beta=1.5)

    def forward(self, asks, offers, content):
        asks, offers = self.positive(asks), self.positive(offers)
        # (WIDTH, WIDTH) per head, whatever the length
        digest = offers.mT @ content / offers.shape[2]
        mass = (asks * offers.mean(2, keepdim=True)).sum(3, keepdim=True)
        return (asks @ digest) / (mass + self.floor)


def get_inputs():
    return [torch.randn(B, HEADS, STEPS, WIDTH) for _ in range(3)]


def get_init_inputs():
    return [1e-4]
