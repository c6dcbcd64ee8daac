"""Prints from the scene against soles from the shop: a pair is worth what the more doubtful of the two sides gives it."""
import torch
import torch.nn as nn
import torch.nn.functional as F

CASES = 4000
PRINT_DIM, SOLE_DIM, COMMON_DIM = 720, 560, 480


class Model(nn.Module):
    def __init__(self, print_dim, sole_dim, common_dim):
        super().__init__()
        self.from_print = nn.Linear(print_dim, common_dim)
        self.from_sole = nn.Linear(sole_dim, common_dim)
        self.contrast = nn.Parameter(torch.tensor(8.0))

    def forward(self, prints, soles):
        prints = F.normalize(self.from_print(prints))
        soles = F.normalize(self.from_sole(soles))
        match = self.contrast * prints.mm(soles.t())
        return torch.minimum(match.softmax(0), match.softmax(1))


def get_inputs():
    return [torch.randn(CASES, PRINT_DIM), torch.randn(CASES, SOLE_DIM)]


def get_init_inputs():
    return [PRINT_DIM, SOLE_DIM, COMMON_DIM]
