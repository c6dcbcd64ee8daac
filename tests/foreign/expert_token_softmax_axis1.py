import torch
import torch.nn as nn

# Soft MoE dispatch: tokens x slots logits, softmax over tokens (dispatch) - combine weights are done elsewhere
B, TOK, DIM = 32, 4096, 1024
EXPERTS = 32
SLOTS = 16


class Model(nn.Module):
    def __init__(self, dim, experts, slots):
        super().__init__()
        self.phi = nn.Parameter(torch.randn(dim, experts * slots) * dim ** -0.5)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        # phi is normalised over its first axis, like in the paper
        phi = self.scale * nn.functional.normalize(self.phi, dim=0)
        logits = torch.einsum("btd,ds->bts", x, phi)
        dispatch = logits.softmax(dim=1)
        return torch.einsum("bts,btd->bsd", dispatch, x)


def get_inputs():
    return [torch.randn(B, TOK, DIM)]


def get_init_inputs():
    return [DIM, EXPERTS, SLOTS]
