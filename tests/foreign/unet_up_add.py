import torch
import torch.nn as nn

batch = 8
channels = 128
h = w = 256


class Model(nn.Module):
    """Decoder step of a U-Net that adds (instead of concatenating) the skip connection."""

    def __init__(self, channels: int):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels // 2, kernel_size=2, stride=2)
        self.norm = nn.BatchNorm2d(channels // 2)
        self.act = nn.ReLU(inplace=True)
        self.mix = nn.Conv2d(channels // 2, channels // 2, kernel_size=1)

    def forward(self, low: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        assert low.dim() == 4 and skip.dim() == 4
        u = self.up(low)
        u = self.act(self.norm(u + skip))
        return self.mix(u)


def get_inputs():
    low = torch.randn(batch, channels, h, w)
    skip = torch.randn(batch, channels // 2, 2 * h, 2 * w)
    return [low, skip]


def get_init_inputs():
    return [channels]
