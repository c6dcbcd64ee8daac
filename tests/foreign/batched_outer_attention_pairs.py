import torch
import torch.nn as nn

# Triangle multiplication ("outgoing"), simplified: one gate, no final projection

N = 384
C = 128
BATCH = 2


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.norm_in = nn.LayerNorm(c)
        self.a_proj = nn.Linear(c, c)
        self.a_gate = nn.Linear(c, c)
        self.b_proj = nn.Linear(c, c)
        self.norm_out = nn.LayerNorm(c)

    def forward(self, z):
        z = self.norm_in(z)
        a = self.a_proj(z) * torch.sigmoid(self.a_gate(z))
        b = self.b_proj(z)
        x = torch.einsum("bikc,bjkc->bijc", a, b)
        return self.norm_out(x)


def get_inputs():
    return [torch.randn(BATCH, N, N, C)]


def get_init_inputs():
    return [C]
