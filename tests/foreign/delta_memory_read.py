import torch
import torch.nn as nn


class Model(nn.Module):
    """
    Writes one association into a memory and reads it: (M + beta * v k^T) q / (1 + |q|_1).

    memory: [heads, dv, dk], k: [heads, dk], v: [heads, dv], q: [heads, dk]
    """

    def __init__(self, beta):
        super().__init__()
        self.beta = beta

    def forward(self, memory, k, v, q):
        update = v[:, :, None] * k[:, None, :]
        m = memory + self.beta * update
        out = torch.bmm(m, q.unsqueeze(-1)).squeeze(-1)
        denom = 1.0 + q.abs().sum(dim=-1, keepdim=True)
        return out / denom


heads = 2048
dv = dk = 256


def get_inputs():
    memory = torch.randn(heads, dv, dk)
    k = torch.randn(heads, dk)
    v = torch.randn(heads, dv)
    q = torch.randn(heads, dk)
    return [memory, k, v, q]


def get_init_inputs():
    return [0.1]
