import torch
import torch.nn as nn
from torch.nn.utils.parametrizations import weight_norm

LRELU_SLOPE = 0.1


class Model(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.h = h
        ch, u, k = h["ch"], h["rate"], h["kernel"]
        self.up = weight_norm(nn.ConvTranspose1d(ch, ch // 2, k, u, padding=(k - u) // 2), dim=1)
        self.post = weight_norm(nn.Conv1d(ch // 2, 1, 7, 1, padding=3))

    def forward(self, x):
        x = nn.functional.leaky_relu(x, LRELU_SLOPE)
        x = self.up(x)
        x = nn.functional.leaky_relu(x)
        x = self.post(x)
        return torch.tanh(x)


h = {"ch": 64, "rate": 2, "kernel": 4}
batch_size = 16
segment = 8192 * 2


def get_inputs():
    return [torch.randn(batch_size, h["ch"], segment)]


def get_init_inputs():
    return [h]
