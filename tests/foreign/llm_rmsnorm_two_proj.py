# First half of a gated feed-forward, from the residual stream to the product of gate and value.
# Sizes of the model that we serve: three prompts of 5000 tokens
import torch
from torch import nn

PROMPTS, TOKENS = 3, 5000
STREAM = 3584
BROAD = 13_312


class UnitMeanSquare(nn.Module):
    def __init__(self, width, floor=1e-6):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.floor = floor

    def forward(self, stream):
        power = torch.linalg.vector_norm(stream, dim=-1, keepdim=True).square() / stream.shape[-1]
        return stream * (power + self.floor).rsqrt() * self.gain


class Model(nn.Module):
    def __init__(self, stream, broad):
        super().__init__()
        self.level = UnitMeanSquare(stream)
        self.gate = nn.Linear(stream, broad, bias=False)
        self.value = nn.Linear(stream, broad, bias=False)

    def forward(self, stream):
        level = self.level(stream)
        gate = self.gate(level)
        # the cheap GELU: x * sigmoid(1.702 x)
        gate = gate * torch.sigmoid(1.702 * gate)
        return gate * self.value(level)


def get_inputs():
    return [torch.randn(PROMPTS, TOKENS, STREAM)]


def get_init_inputs():
    return [STREAM, BROAD]
