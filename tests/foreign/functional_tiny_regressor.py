import torch
import torch.nn as nn
import torch.nn.functional as F

# Exercise: write the network without any nn.Linear. Boston-like data, 13 columns.


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.W1 = nn.Parameter(torch.randn(64, 13) * 0.3)
        self.b1 = nn.Parameter(torch.zeros(64))
        self.W2 = nn.Parameter(torch.randn(1, 64) * 0.1)
        self.b2 = nn.Parameter(torch.tensor([22.5]))

    def forward(self, X):
        Z1 = F.linear(X, self.W1, self.b1)
        A1 = F.celu(Z1, alpha=1.5)
        Z2 = F.linear(A1, self.W2, self.b2)
        return F.relu(Z2)


def get_inputs():
    return [torch.rand(506, 13)]


def get_init_inputs():
    return []
