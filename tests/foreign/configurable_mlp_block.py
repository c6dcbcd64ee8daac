import torch
from torch import nn

_ACTIVATIONS = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
}

OPTIONS = {"width": 1280, "expansion": 4, "activation": "mish", "norm_first": False, "residual": True}
SEQUENCES = 24
SEQUENCE_LENGTH = 192


class MLPBlock(nn.Module):
    """Feed-forward block in which everything is an option."""

    def __init__(self, *, width, expansion=4, activation="relu", norm_first=True, residual=True):
        super().__init__()
        self.inner = nn.Linear(width, width * expansion)
        self.outer = nn.Linear(width * expansion, width)
        self.activation = _ACTIVATIONS[activation]()
        self.norm = nn.LayerNorm(width)
        self.norm_first = norm_first
        self.residual = residual

    def forward(self, tokens):
        hidden = self.norm(tokens) if self.norm_first else tokens
        hidden = self.outer(self.activation(self.inner(hidden)))
        if self.residual:
            hidden = hidden + tokens
        if not self.norm_first:
            hidden = self.norm(hidden)
        return hidden


class Model(MLPBlock):
    """The block above behind positional arguments, which is all our benchmark runner can pass."""

    def __init__(self, options):
        super().__init__(**options)


def get_inputs():
    return [torch.randn(SEQUENCES, SEQUENCE_LENGTH, OPTIONS["width"])]


def get_init_inputs():
    return [OPTIONS]
