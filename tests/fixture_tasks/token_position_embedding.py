"""Token plus learned position embeddings, scaled."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"B": 2, "S": 8, "V": 20, "D": 32}, "ragged": {"B": 1, "S": 5, "V": 17, "D": 27}}
B = 16
S = 1024
V = 50000
D = 1024


class Model(nn.Module):
    def __init__(self, tokens, positions, dim):
        super().__init__()
        self.token = nn.Embedding(tokens, dim)
        self.position = nn.Embedding(positions, dim)
        self.scale = dim**0.5

    def forward(self, ids):
        return self.token(ids) * self.scale + self.position.weight[None, : ids.shape[1]]


def get_inputs():
    return [torch.randint(0, V, (B, S))]


def get_init_inputs():
    return [V, S, D]
