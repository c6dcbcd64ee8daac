"""Tabular net block at a large batch: Linear -> BatchNorm1d (batch statistics) -> ReLU -> residual -> LayerNorm."""
import torch
import torch.nn as nn

ROWS = 100_000
COLUMNS = 1_200


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.lin = nn.Linear(columns, columns)
        self.bn = nn.BatchNorm1d(columns, momentum=0.01, eps=1e-3)
        self.ln = nn.LayerNorm(columns)

    def forward(self, table):
        z = self.bn(self.lin(table))
        z = z.relu()
        return self.ln(table + z)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return [COLUMNS]
