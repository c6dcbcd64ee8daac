import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Last stage of the decoder of our postcard generator, at 528 x 528: norm in 12 groups, Mish, and a
    5 x 5 convolution to three inks. Inks are shares, so they are bent into (0, 1).
    """

    def __init__(self, ch, inks, n_groups):
        super().__init__()
        self.norm = nn.GroupNorm(n_groups, ch)
        self.print = nn.Conv2d(ch, inks, 5, padding=2)

    @staticmethod
    def to_share(y):
        return 0.5 + 0.5 * y / (1 + y.abs())

    def forward(self, h):
        h = nn.functional.mish(self.norm(h))
        return self.to_share(self.print(h))


CARDS = 8
CH = 120
INKS = 3
GROUPS = 12
SIDE = 528


def get_inputs():
    return [torch.randn(CARDS, CH, SIDE, SIDE)]


def get_init_inputs():
    return [CH, INKS, GROUPS]
