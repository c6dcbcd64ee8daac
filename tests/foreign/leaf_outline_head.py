import torch
from torch import nn

CROPS = 200
DIM = 208
SPECIES = 64
CROP_SIZE = 16


class Model(nn.Module):
    """Outlines of leaves. Every pixel of a doubled crop gets one score per species, measured from the mean over species."""

    def __init__(self, dim, species):
        super().__init__()
        self.enlarge = nn.ConvTranspose2d(dim, dim // 2, 4, stride=2, padding=1)
        self.vote = nn.Conv2d(dim // 2, species, 1)

    def forward(self, crop):
        votes = self.vote(nn.functional.gelu(self.enlarge(crop)))
        return (votes - votes.mean(1, keepdim=True)).sigmoid()


def get_inputs():
    return [torch.randn(CROPS, DIM, CROP_SIZE, CROP_SIZE)]


def get_init_inputs():
    return [DIM, SPECIES]
