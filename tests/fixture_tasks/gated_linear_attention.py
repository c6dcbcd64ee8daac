"""Gated linear attention by its recurrence."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"T": 16, "K": 8, "V": 16}, "ragged": {"T": 13, "K": 19, "V": 11}}
B = 2
T = 128
H = 2
K = 32
V = 32


class Model(nn.Module):
    """Gated linear attention by recurrence."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, q, k, v, g):
        B, T, H, K = q.shape
        S = q.new_zeros(B, H, K, v.shape[-1])
        out = []
        for t in range(T):
            S = S * torch.exp(-torch.nn.functional.softplus(-g[:, t]))[..., None] + k[:, t, :, :, None] * v[:, t, :, None, :]
            out.append(torch.einsum("bhk,bhkv->bhv", q[:, t] * self.scale, S))
        return torch.stack(out, 1), S


def get_inputs():
    return [torch.randn(B, T, H, K), torch.randn(B, T, H, K), torch.randn(B, T, H, V), torch.randn(B, T, H, K)]


def get_init_inputs():
    return [K**-0.5]
