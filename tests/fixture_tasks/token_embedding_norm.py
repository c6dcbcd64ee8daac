"""Embedding lookup by int64 ids, scaled by the root of the width, layer norm."""

import torch
import torch.nn as nn

INPUT_SETS = {'small': {'B': 2, 'S': 8, 'V': 20, 'E': 32}, 'ragged': {'B': 3, 'S': 5, 'V': 17, 'E': 27}}
B = 16
S = 1024
V = 32000
E = 1024


class Model(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids):
        return self.norm(self.tokens(ids) * self.tokens.embedding_dim**0.5)


def get_inputs():
    return [torch.randint(0, V, (B, S))]


def get_init_inputs():
    return [V, E]
