# Gate and up projections of a pre-norm block, in one file, without the down projection.
# Sizes: 4k context, batch 4, hidden 4096, intermediate 14336 (this is what we profile on)
import torch
from torch import nn
from torch.nn import functional as F

B, S = 4, 4096
HIDDEN = 4096
INTERMEDIATE = 14336


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states


class Model(nn.Module):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.input_layernorm = RMSNorm(hidden_size)
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)

    def forward(self, hidden_states):
        n = self.input_layernorm(hidden_states)
        return F.gelu(self.gate_proj(n), approximate="tanh") * self.up_proj(n)


def get_inputs():
    return [torch.randn(B, S, HIDDEN)]


def get_init_inputs():
    return [HIDDEN, INTERMEDIATE]
