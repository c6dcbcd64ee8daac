"""Gated MLPs of experts, weighted by a router's choice."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"T": 16, "D": 32, "FF": 16}, "ragged": {"T": 11, "D": 5, "FF": 11}}
T = 256
D = 256
FF = 512
E = 8
TOPK = 2


class Model(nn.Module):
    def __init__(self, D, FF, E, topk):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(E, 2 * FF, D) * D**-0.5)
        self.w2 = nn.Parameter(torch.randn(E, D, FF) * FF**-0.5)
        self.topk = topk

    def forward(self, x, topk_ids, topk_weights):
        out = torch.zeros_like(x)
        for e in range(self.w1.shape[0]):
            h = x @ self.w1[e].t()
            a, b = h.chunk(2, dim=-1)
            y = (F.silu(a) * b) @ self.w2[e].t()
            gate = ((topk_ids == e) * topk_weights).sum(-1, keepdim=True)
            out = out + gate * y
        return out


def get_inputs():
    ids = torch.stack([torch.randperm(E)[:TOPK] for _ in range(T)])
    return [torch.randn(T, D), ids, torch.softmax(torch.randn(T, TOPK), -1)]


def get_init_inputs():
    return [D, FF, E, TOPK]
