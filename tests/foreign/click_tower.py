"""Dense tower of a click-through model, without the embedding part.

The raw counters are log-compressed first, then go through one wide affine layer. We
clip the logits before the final squash because a handful of ad slots produce absurd
counts and used to blow up the calibration job.
"""
import torch
from torch import nn

N_REQUESTS = 4096
N_COUNTERS = 416
N_HIDDEN = 1024


class Model(nn.Module):
    def __init__(self, n_counters: int, n_hidden: int, clip: float = 6.0):
        super().__init__()
        self.dense = nn.Linear(n_counters, n_hidden)
        self.calibration = nn.Parameter(torch.ones(n_hidden))
        self.clip = clip

    def forward(self, counters: torch.Tensor) -> torch.Tensor:
        h = torch.log1p(counters.abs())
        h = self.dense(h)
        h = h * self.calibration
        h = h.clamp(-self.clip, self.clip)
        return torch.sigmoid(h)


def get_inputs():
    return [torch.randn(N_REQUESTS, N_COUNTERS)]


def get_init_inputs():
    return [N_COUNTERS, N_HIDDEN]
