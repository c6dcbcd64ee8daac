"""Cross entropy of each row plus the square of its log-sum-exp; rows whose target is -100 give 0."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"T": 8, "V": 32}, "ragged": {"T": 7, "V": 45}}
T = 4096
V = 32000


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, logits, target):
        lse = torch.logsumexp(logits, dim=-1)
        kept = target != -100
        at = logits.gather(1, target.clamp_min(0)[:, None])[:, 0]
        return torch.where(kept, lse - at + self.scale * lse * lse, torch.zeros_like(lse))


def get_inputs():
    target = torch.randint(0, V, (T,))
    return [torch.randn(T, V), torch.where(torch.rand(T) < 0.2, -100, target)]


def get_init_inputs():
    return [1e-4]
