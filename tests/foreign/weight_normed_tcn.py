import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import weight_norm

B, C, T = 32, 150, 1024
KERNEL = 7


class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super().__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, : -self.chomp_size].contiguous()


class Model(nn.Module):
    """First half of a temporal block: causal (by chomping), weight normalised, ReLU, dropout off, residual."""

    def __init__(self, n_channels, kernel_size, dropout=0.0):
        super().__init__()
        pad = kernel_size - 1
        self.conv1 = weight_norm(nn.Conv1d(n_channels, n_channels, kernel_size, padding=pad))
        self.chomp1 = Chomp1d(pad)
        self.relu1 = nn.ReLU()
        self.dropout1 = nn.Dropout(dropout)
        self.net = nn.Sequential(self.conv1, self.chomp1, self.relu1, self.dropout1)

    def forward(self, x):
        return torch.relu(self.net(x) + x)


def get_inputs():
    return [torch.randn(B, C, T)]


def get_init_inputs():
    return [C, KERNEL]
