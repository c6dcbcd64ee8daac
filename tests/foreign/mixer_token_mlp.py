import torch
import torch.nn as nn
from dataclasses import dataclass


@dataclass
class MixerConfig:
    batch: int = 64
    patches: int = 196
    hidden: int = 512
    token_mlp: int = 256


cfg = MixerConfig()


class Model(nn.Module):
    """Token mixing of MLP-Mixer. The transpose is done with einsum so that no copy is written by us."""

    def __init__(self, cfg: MixerConfig):
        super().__init__()
        self.norm = nn.LayerNorm(cfg.hidden)
        self.w_in = nn.Parameter(torch.randn(cfg.token_mlp, cfg.patches) * 0.05)
        self.w_out = nn.Parameter(torch.randn(cfg.patches, cfg.token_mlp) * 0.05)

    def forward(self, x):
        y = self.norm(x)
        y = torch.einsum("tp,bpc->btc", self.w_in, y)
        y = nn.functional.gelu(y)
        y = torch.einsum("pt,btc->bpc", self.w_out, y)
        return x + y


def get_inputs():
    return [torch.randn(cfg.batch, cfg.patches, cfg.hidden)]


def get_init_inputs():
    return [cfg]
