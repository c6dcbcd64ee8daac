from typing import Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F

STATE_DIM: int = 1024
ACTION_DIM: int = 64
BATCH: int = 2048


class Model(nn.Module):
    """Gaussian policy head: squashed mean and a bounded standard deviation."""

    LOG_STD_MIN = -5.0
    LOG_STD_MAX = 2.0

    def __init__(self, state_dim: int, action_dim: int):
        super().__init__()
        self.mean_head = nn.Linear(state_dim, action_dim)
        self.log_std_head = nn.Linear(state_dim, action_dim)

    def forward(self, state: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        mean = torch.tanh(self.mean_head(state))
        log_std = torch.tanh(self.log_std_head(state))
        log_std = self.LOG_STD_MIN + 0.5 * (self.LOG_STD_MAX - self.LOG_STD_MIN) * (log_std + 1)
        return mean, log_std.exp()


def get_inputs():
    return [torch.randn(BATCH, STATE_DIM)]


def get_init_inputs():
    return [STATE_DIM, ACTION_DIM]
