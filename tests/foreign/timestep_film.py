import torch
import torch.nn as nn
import torch.nn.functional as F

CFG = {
    "batch": 16,
    "channels": 128,
    "groups": 32,
    "size": 64,
    "emb": 512,
}


class Model(nn.Module):
    """ResBlock entry of a diffusion UNet: norm, swish, conv, then scale and shift from the timestep embedding."""

    def __init__(self, channels, groups, emb):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.emb_proj = nn.Linear(emb, channels)

    def forward(self, x, temb):
        h = self.conv(F.silu(self.norm(x)))
        s = self.emb_proj(F.silu(temb))[:, :, None, None]
        return h * (1 + s) + x


def get_inputs():
    x = torch.randn(CFG["batch"], CFG["channels"], CFG["size"], CFG["size"])
    temb = torch.randn(CFG["batch"], CFG["emb"])
    return [x, temb]


def get_init_inputs():
    return [CFG["channels"], CFG["groups"], CFG["emb"]]
