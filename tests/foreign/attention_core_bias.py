import torch
import torch.nn as nn

GAMES = 48
READERS = 8          # heads
POINTS = 19 * 19
WIDTH = 56


class Model(nn.Module):
    """Points of a 19 x 19 board look at one another. A learned table adds what each pair of points means to each reader."""

    def __init__(self, readers, points, width):
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(readers, points, points))
        self.root = width ** 0.5

    def forward(self, asks, offers, content):
        pull = torch.einsum("grpw,grsw->grps", asks, offers).div(self.root)
        share = (pull + self.table).softmax(-1)
        return share @ content


def get_inputs():
    return [torch.randn(GAMES, READERS, POINTS, WIDTH) for _ in ("asks", "offers", "content")]


def get_init_inputs():
    return [READERS, POINTS, WIDTH]
