from typing import Tuple

import torch
import torch.nn as nn
from torch import Tensor

_SITES = 120
_METERS = 72
_PAST = 480
_AHEAD = 160


class Model(nn.Module):
    """Forecast of electricity meters in units of their own: level and spread come off before the linear map, and back after."""

    def __init__(self, past: int, ahead: int):
        super().__init__()
        self._map = nn.Linear(past, ahead)
        self._fade = nn.Parameter(torch.linspace(1.0, 0.5, ahead))

    def _own_units(self, past: Tensor) -> Tuple[Tensor, Tensor]:
        level = past.mean(-1, keepdim=True)
        spread = (past - level).abs().mean(-1, keepdim=True)
        return level, spread + 1e-4

    def forward(self, past: Tensor) -> Tensor:
        level, spread = self._own_units(past)
        ahead = self._map((past - level) / spread)
        return level + spread * self._fade * ahead


def get_inputs():
    return [torch.randn(_SITES, _METERS, _PAST)]


def get_init_inputs():
    return [_PAST, _AHEAD]
