import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS: int = 8192
IN: int = 4096
OUT: int = 4096
GROUPS: int = 64


class Model(nn.Module):
    """Pre-activation layer: group norm over blocks of features, hardswish, linear, Hardsigmoid gate on itself."""

    def __init__(self, n_in: int, n_out: int, groups: int) -> None:
        super().__init__()
        if n_in % groups:
            raise ValueError(f"{n_in} features cannot be divided in {groups} groups")
        self.gn = nn.GroupNorm(groups, n_in)
        self.lin = nn.Linear(n_in, n_out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(F.hardswish(self.gn(x)))
        return y * F.hardsigmoid(y)


def get_inputs():
    return [torch.randn(ROWS, IN)]


def get_init_inputs():
    return [IN, OUT, GROUPS]
