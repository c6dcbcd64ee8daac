import torch
import torch.nn as nn
import torch.nn.functional as F

TILES = 16
BANDS = 13          # Sentinel-2
TILE_SIZE = 1024
EMBED = 128
PATCH = 4


class Model(nn.Module):
    """Patchify with a strided convolution, GELU, then layer norm over the channel axis (functional, channels first)."""

    def __init__(self, bands, embed, patch):
        super().__init__()
        self.proj = nn.Conv2d(bands, embed, kernel_size=patch, stride=patch)
        self.weight = nn.Parameter(torch.ones(embed))
        self.bias = nn.Parameter(torch.zeros(embed))
        self.eps = 1e-6

    def forward(self, tiles):
        x = F.gelu(self.proj(tiles))
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + self.eps)
        return self.weight[:, None, None] * x + self.bias[:, None, None]


def get_inputs():
    return [torch.randn(TILES, BANDS, TILE_SIZE, TILE_SIZE)]


def get_init_inputs():
    return [BANDS, EMBED, PATCH]
