"""Attention block: layer norm, one projection to q, k and v, attention, projection, residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {'small': {'B': 2, 'S': 8, 'E': 16, 'H': 2}, 'ragged': {'B': 1, 'S': 7, 'E': 12, 'H': 3}}
B = 16
S = 512
E = 768
H = 12


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        b, s, e = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b, s, 3, self.heads, e // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj(y.transpose(1, 2).reshape(b, s, e))


def get_inputs():
    return [torch.randn(B, S, E)]


def get_init_inputs():
    return [E, H]
