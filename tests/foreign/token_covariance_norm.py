import torch
import torch.nn as nn


class Model(nn.Module):
    """Second-order pooling: covariance of the features over the tokens, LayerNorm over the whole matrix, tanh.

    ``x`` is (B, T, D); the result is (B, D, D).
    """

    def __init__(self, d_in, d):
        super().__init__()
        self.reduce = nn.Linear(d_in, d)
        self.ln = nn.LayerNorm((d, d), elementwise_affine=True)

    def forward(self, x):
        z = self.reduce(x)
        z = z - z.mean(dim=1, keepdim=True)
        cov = z.transpose(1, 2) @ z / z.size(1)
        return torch.tanh(self.ln(cov))


B, T, D_IN, D = 64, 784, 512, 160


def get_inputs():
    return [torch.randn(B, T, D_IN)]


def get_init_inputs():
    return [D_IN, D]
