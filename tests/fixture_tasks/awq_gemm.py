"""Product with a weight of 4-bit numbers in AWQ's order."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"M": 2, "K": 128, "N": 64}, "ragged": {"M": 3, "K": 320, "N": 40}}
M = 64
K = 512
N = 1024
G = 64


class Model(nn.Module):
    """x @ dequantised weight; eight 4-bit numbers in each int32 along N, in AWQ's order."""

    def __init__(self, group):
        super().__init__()
        self.group = group
        self.register_buffer("order", torch.tensor([0, 4, 1, 5, 2, 6, 3, 7]) * 4, persistent=False)

    def unpack(self, q):
        return ((q.unsqueeze(-1) >> self.order) & 15).flatten(1)

    def forward(self, x, qweight, qzeros, scales):
        w = self.unpack(qweight)
        z = self.unpack(qzeros).repeat_interleave(self.group, 0)
        s = scales.repeat_interleave(self.group, 0)
        return x @ ((w - z).to(x.dtype) * s)


def get_inputs():
    return [
        torch.randn(M, K),
        torch.randint(-(2**31), 2**31 - 1, (K, N // 8), dtype=torch.int32),
        torch.randint(-(2**31), 2**31 - 1, (K // G, N // 8), dtype=torch.int32),
        torch.rand(K // G, N) * 0.02,
    ]


def get_init_inputs():
    return [G]
