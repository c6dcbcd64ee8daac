from __future__ import annotations

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """3-D convolution followed by a channel-wise excitation computed from the global average."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel, padding=kernel // 2)
        self.squeeze_weight = nn.Parameter(torch.randn(out_channels) * 0.1)
        self.squeeze_bias = nn.Parameter(torch.zeros(out_channels))

    def forward(self, volume: Tensor) -> Tensor:
        y = self.conv(volume)
        pooled = y.mean(dim=(2, 3, 4))
        gate = torch.sigmoid(pooled * self.squeeze_weight + self.squeeze_bias)
        return y * gate[:, :, None, None, None]


BATCH = 4
C_IN = 8
C_OUT = 32
SIDE = 64


def get_inputs() -> list[Tensor]:
    return [torch.randn(BATCH, C_IN, SIDE, SIDE, SIDE)]


def get_init_inputs() -> list[int]:
    return [C_IN, C_OUT, 3]
