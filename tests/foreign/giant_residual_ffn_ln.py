"""One square layer with ReLU and a residual, normalised afterwards.

rows x 10240 -> linear -> relu -> add input -> LayerNorm -> times alpha -> plus beta
"""
import torch
import torch.nn as nn

ROWS = 16384
COLS = 10240


class Model(nn.Module):
    def __init__(self, cols: int, alpha: float = 0.9, beta: float = 0.01):
        super().__init__()
        self.fc = nn.Linear(cols, cols)
        self.norm = nn.LayerNorm(cols)
        self.alpha = alpha
        self.beta = beta

    def forward(self, x):
        y = torch.nn.functional.relu(self.fc(x))
        y = self.norm(y + x)
        return torch.add(self.beta, torch.mul(y, self.alpha))


def get_inputs():
    return [torch.randn(ROWS, COLS)]


def get_init_inputs():
    return [COLS]
