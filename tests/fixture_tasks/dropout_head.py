"""A head with dropouts and a spectral norm, which are judged as in eval mode."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"ROWS": 8, "WIDE": 32}, "ragged": {"ROWS": 5, "WIDE": 27}}
ROWS = 4096
WIDE = 512
OUT = 24


class Model(nn.Module):
    def __init__(self, wide, out):
        super().__init__()
        self.hidden = nn.utils.parametrizations.spectral_norm(nn.Linear(wide, out))
        self.drop = nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(out)

    def forward(self, x):
        y = self.norm(self.drop(torch.relu(self.hidden(x))))
        return F.dropout(torch.sigmoid(y), 0.1, training=self.training)


def get_inputs():
    return [torch.randn(ROWS, WIDE)]


def get_init_inputs():
    return [WIDE, OUT]
