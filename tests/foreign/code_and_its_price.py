import torch
import torch.nn as nn
import torch.nn.functional as F
from typing import NamedTuple


class Shapes(NamedTuple):
    faces: int = 560
    features: int = 3600
    code: int = 960


SHAPES = Shapes()


class Model(nn.Module):
    """Code of a face, and its price in nats: the divergence of the code's Gaussian from the standard one. The noise comes
    in from outside, so that two runs agree."""

    def __init__(self, features, code):
        super().__init__()
        self.centre = nn.Linear(features, code)
        self.width = nn.Linear(features, code)

    def forward(self, face, noise):
        centre = self.centre(face)
        width = F.softplus(self.width(face)) + 0.01
        price = 0.5 * (centre.square() + width.square() - 1) - width.log()
        return torch.addcmul(centre, width, noise), price.sum(1)


def get_inputs():
    return [torch.randn(SHAPES.faces, SHAPES.features), torch.randn(SHAPES.faces, SHAPES.code)]


def get_init_inputs():
    return [SHAPES.features, SHAPES.code]
