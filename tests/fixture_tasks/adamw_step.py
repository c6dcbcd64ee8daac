"""One step of AdamW."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"SHAPE": (8, 32)}, "ragged": {"SHAPE": (5, 27)}}
SHAPE = (1024, 768)


class Model(nn.Module):
    def __init__(self, lr, beta1, beta2, eps, wd):
        super().__init__()
        self.hyper = (lr, beta1, beta2, eps, wd)

    def forward(self, p, g, m, v, step):
        lr, b1, b2, eps, wd = self.hyper
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        update = (m / (1 - b1**step)) / ((v / (1 - b2**step)).sqrt() + eps)
        return p * (1 - lr * wd) - lr * update, m, v


def get_inputs():
    return [torch.randn(SHAPE), torch.randn(SHAPE), torch.randn(SHAPE), torch.rand(SHAPE), 7]


def get_init_inputs():
    return [1e-2, 0.9, 0.99, 1e-8, 0.1]
