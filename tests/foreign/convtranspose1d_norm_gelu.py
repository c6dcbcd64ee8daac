import torch
import torch.nn as nn
import torch.nn.functional as F

dims = dict(batch=32, c_in=256, c_out=128, frames=4096)


class Model(nn.Module):
    """
    Codec decoder: learned x4 upsampling, GroupNorm with a single group ("global layer norm"), GELU less one per
    cent of its input.
    """

    def __init__(self, c_in, c_out):
        super().__init__()
        self.up = nn.ConvTranspose1d(c_in, c_out, kernel_size=8, stride=4, padding=2)
        self.gln = nn.GroupNorm(1, c_out, eps=1e-8)

    def forward(self, codes):
        y = self.up(codes)
        y = self.gln(y)
        return F.gelu(y) - 0.01 * y


def get_inputs():
    return [torch.randn(dims["batch"], dims["c_in"], dims["frames"])]


def get_init_inputs():
    return [dims["c_in"], dims["c_out"]]
