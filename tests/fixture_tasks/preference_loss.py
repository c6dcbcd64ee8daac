"""Direct preference loss of pairs, and whether the chosen answer wins."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"P": 32}, "ragged": {"P": 21}}
P = 1048576


class Model(nn.Module):
    def __init__(self, beta):
        super().__init__()
        self.beta = beta

    def forward(self, chosen, rejected, ref_chosen, ref_rejected):
        margin = self.beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
        return -F.logsigmoid(margin), margin


def get_inputs():
    return [torch.randn(P) for _ in range(4)]


def get_init_inputs():
    return [0.1]
