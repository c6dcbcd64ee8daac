import torch
import torch.nn as nn


class Model(nn.Module):
    """Delay-free filter-and-sum beamformer: learned weights per (beam, mic), an equaliser per bin, log of the mean energy"""

    def __init__(self, mics, beams, bins):
        super().__init__()
        self.w = nn.Parameter(torch.randn(beams, mics) / mics)
        self.eq = nn.Parameter(torch.ones(bins))

    def forward(self, x):
        # x: batch, mic, frame, bin
        y = torch.einsum("km,bmtf->bktf", self.w, x)
        energy = (y * self.eq) ** 2
        energy = energy.mean(dim=2)
        return torch.log(energy + 1e-7)


MICS = 8
BEAMS = 12
FRAMES = 600
BINS = 513
RECORDINGS = 16


def get_inputs():
    return [torch.randn(RECORDINGS, MICS, FRAMES, BINS)]


def get_init_inputs():
    return [MICS, BEAMS, BINS]
