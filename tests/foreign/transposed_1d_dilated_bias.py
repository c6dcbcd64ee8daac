import torch
import torch.nn as nn

n_batch = 16
n_in = 40
n_out = 56
n_len = 700


class Model(nn.Module):
    """transposed convolution with stride 3, dilation 2 and output padding 1, then scaled, shifted, bounded"""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.deconv = nn.ConvTranspose1d(n_in, n_out, 5, stride=3, padding=2, output_padding=1, dilation=2, bias=False)
        self.log_gain = nn.Parameter(torch.zeros(n_out, 1))
        self.offset = nn.Parameter(torch.randn(n_out, 1) * 0.1)

    def forward(self, x):
        y = torch.exp(self.log_gain) * self.deconv(x) + self.offset
        y = torch.minimum(y, torch.ones_like(y))
        return nn.functional.elu_(y)


def get_inputs():
    return [torch.randn(n_batch, n_in, n_len)]


def get_init_inputs():
    return [n_in, n_out]
