import torch
import torch.nn as nn


class Model(nn.Module):
    """Left/right projections summed into a pair representation (additive outer), then layer norm and relu.

    single: (batch, length, c_s)   ->   pair: (batch, length, length, c_z)
    """

    def __init__(self, c_s: int, c_z: int):
        super().__init__()
        self.left = nn.Linear(c_s, c_z)
        self.right = nn.Linear(c_s, c_z)
        self.norm = nn.LayerNorm(c_z)

    def forward(self, single):
        a = self.left(single)
        b = self.right(single)
        pair = a[:, :, None, :] + b[:, None, :, :]
        return self.norm(pair).relu()


batch = 2
length = 768
c_s = 384
c_z = 128


def get_inputs():
    return [torch.randn(batch, length, c_s)]


def get_init_inputs():
    return [c_s, c_z]
