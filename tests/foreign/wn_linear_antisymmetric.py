import torch
import torch.nn as nn

n = 2000
d = 1536


class Model(nn.Module):
    """x + step * tanh((W - W^T - gamma I) x + b): AntisymmetricRNN cell without input, W = g * v / ||v|| by rows."""

    def __init__(self, d, step=0.1, gamma=0.01):
        super().__init__()
        self.v = nn.Parameter(torch.randn(d, d) / d ** 0.5)
        self.g = nn.Parameter(torch.ones(d, 1))
        self.b = nn.Parameter(torch.zeros(d))
        self.step, self.gamma = step, gamma

    @property
    def weight(self):
        return self.g * self.v / self.v.norm(dim=1, keepdim=True)

    def forward(self, x):
        w = self.weight
        pre = x @ (w - w.t()) - self.gamma * x + self.b
        return x + self.step * torch.tanh(pre)


def get_inputs():
    return [torch.randn(n, d)]


def get_init_inputs():
    return [d]
