# Homework 3, problem 2
# Name: ----
import torch
import torch.nn as nn
import torch.nn.functional as F

n = 128
d = 1000
m = 500


class Model(nn.Module):
    def __init__(self, d, m):
        super(Model, self).__init__()
        self.fc1 = nn.Linear(d, m)
        self.bn = nn.BatchNorm1d(m)

    def forward(self, x):
        # part (a): linear
        out = self.fc1(x)
        # part (b): batch norm (training mode!)
        out = self.bn(out)
        # part (c): elu
        out = F.elu(out)
        # part (d): normalize the rows to sum 1
        out = torch.exp(out) / torch.sum(torch.exp(out), dim=1, keepdim=True)
        # part (e): entropy-ish score per row
        out = -(out * torch.log(out + 1e-8)).sum(dim=1)
        return out


def get_inputs():
    return [torch.randn(n, d)]


def get_init_inputs():
    return [d, m]
