"""Ops of generated tasks in plain words, for the instruction of a prompt."""

from __future__ import annotations

import re
from collections.abc import Sequence

WORDS = {
    "abs": "absolute value", "bmm": "batched matrix product", "clamp": "clamp to an interval", "elu": "ELU", "gelu": "GELU",
    "gelu_tanh": "GELU by tanh", "hardsigmoid": "hard sigmoid", "hardswish": "hard swish", "hardtanh": "hard tanh",
    "leaky_relu": "leaky ReLU", "linear": "linear layer", "logsigmoid": "logarithm of the sigmoid",
    "log_softmax": "logarithm of the softmax", "logsumexp": "logarithm of the sum of exponentials", "matmul": "matrix product",
    "relu": "ReLU", "relu6": "ReLU6", "residual_add": "addition of an earlier result",
    "residual_mul": "product with an earlier result", "rms_norm": "RMS norm", "selu": "SELU", "silu": "SiLU",
    "batch_norm_eval": "batch norm with given statistics", "global_avg_pool": "global average pool",
    "avg_pool": "average pool", "max": "maximum", "min": "minimum",
}  # fmt: skip
"""Op → what a person calls it, where its name is not that."""

PAIRED = {"add": "addition of", "sub": "subtraction of", "mul": "product with", "div": "division by", "max": "maximum with",
          "min": "minimum with"}  # fmt: skip
OTHERS = {"param": "a parameter", "scalar": "a number", "tensor": "a second input"}
AXES = {"channel": "over the channels", "space": "over all positions"}


def in_words(op: str) -> str:
    """An op: `subtraction of a parameter` for `sub_param`."""
    first, _, rest = op.partition("_")
    if rest in OTHERS and first in PAIRED:
        return f"{PAIRED[first]} {OTHERS[rest]}"
    if first in AXES:
        return f"{in_words(rest)} {AXES[first]}"
    if convolution := re.fullmatch(r"conv(_transpose)?(\d)d", op):
        return f"{'transposed ' if convolution[1] else ''}{convolution[2]}D convolution"
    return WORDS.get(op, op.replace("_", " "))


def chain_in_words(composition: Sequence[str]) -> str:
    """A chain: `linear layer, GELU, then layer norm`."""
    words = [in_words(op) for op in composition]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + ", then " + words[-1]
