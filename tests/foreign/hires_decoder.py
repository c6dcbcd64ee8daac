import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Last block of a latent-diffusion decoder at 512 x 512: group norm, swish and the
    convolution to RGB, mapped to [0, 1].
    """

    def __init__(self, ch, out_ch, num_groups):
        super().__init__()
        self.norm_out = nn.GroupNorm(num_groups=num_groups, num_channels=ch, eps=1e-6, affine=True)
        self.conv_out = nn.Conv2d(ch, out_ch, kernel_size=3, stride=1, padding=1)

    @staticmethod
    def nonlinearity(x):
        # swish
        return x * torch.sigmoid(x)

    def forward(self, h):
        h = self.norm_out(h)
        h = self.nonlinearity(h)
        h = self.conv_out(h)
        h = torch.clamp((h + 1.0) / 2.0, min=0.0, max=1.0)
        return h


N = 8
CH = 128
OUT_CH = 3
GROUPS = 32
RES = 512


def get_inputs():
    return [torch.randn(N, CH, RES, RES)]


def get_init_inputs():
    return [CH, OUT_CH, GROUPS]
