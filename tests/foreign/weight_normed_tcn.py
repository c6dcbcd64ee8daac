import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import weight_norm

B, C, T = 36, 144, 1000
TAPS = 6


class PastOnly(nn.Module):
    """Convolution that cannot see ahead: zeros stand for what was before the first step"""

    def __init__(self, n_ch, taps, stride_back):
        super().__init__()
        self.before = (taps - 1) * stride_back
        self.filter = weight_norm(nn.Conv1d(n_ch, n_ch, taps, dilation=stride_back))

    def forward(self, x):
        return self.filter(nn.functional.pad(x, (self.before, 0)))


class Model(nn.Module):
    def __init__(self, n_ch, taps):
        super().__init__()
        self.past = PastOnly(n_ch, taps, stride_back=2)
        self.mix = nn.Parameter(torch.tensor(0.6))

    def forward(self, x):
        return torch.lerp(x, nn.functional.gelu(self.past(x)), self.mix)


def get_inputs():
    return [torch.randn(B, C, T)]


def get_init_inputs():
    return [C, TAPS]
