"""The ops of a Graph: what kind of work each one is, and the attributes it has beside its operands.

Names are PyTorch's own. Attributes are always all there, in the order of this table; one that has the default given
here is left out of a listing. An op of no entry is unknown: it has its ATen overload for a name (`aten.lstm.input`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["pointwise", "reduction", "normalization", "scan", "product", "convolution", "pool", "view", "move", "create"]
"""What work an op is.

pointwise: each element of the (broadcast) operands by itself. reduction: `dim` is reduced away, or to 1 with `keepdim`.
normalization: like a reduction, but every element stays. scan: running sums. product, convolution, pool: as named.
view: the same numbers under other indices, no bytes moved. move: copied to other places. create: made of nothing.
"""

REQUIRED = object()
"""In place of a default: the attribute is always listed."""


@dataclass(frozen=True, slots=True)
class Op:
    """What is known of an op."""

    kind: Kind
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Name → default."""
    commutative: bool = False
    """The first two operands may change places."""


def _ops(kind: Kind, *names: str, commutative: bool = False, **attributes: Any) -> dict[str, Op]:
    return {name: Op(kind, attributes, commutative) for name in names}


def _of_rank(kind: Kind, *names: str, **attributes: Any) -> dict[str, Op]:
    """`conv{n}d` for 1, 2 and 3 dimensions; an attribute given as a number has the default `(number,) * n`."""
    found = {}
    for name in names:
        for n in (1, 2, 3):
            spread = {k: (v,) * n if type(v) is int and k not in SCALAR_ATTRIBUTES else v for k, v in attributes.items()}
            found[name.format(n=n)] = Op(kind, spread)
    return found


SCALAR_ATTRIBUTES = ("groups",)

OPS: dict[str, Op] = {
    # one operand
    **_ops("pointwise", "relu", "silu", "mish", "sigmoid", "tanh", "hardswish", "hardsigmoid", "selu", "log_sigmoid"),
    **_ops("pointwise", "softsign", "tanhshrink", "abs", "neg", "square", "sqrt", "rsqrt", "exp", "exp2", "expm1"),
    **_ops("pointwise", "log", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh"),
    **_ops("pointwise", "erf", "erfc", "floor", "ceil", "round", "trunc", "sign", "isnan", "isinf", "logical_not"),
    **_ops("pointwise", "leaky_relu", negative_slope=0.01),
    **_ops("pointwise", "elu", "celu", alpha=1.0),
    **_ops("pointwise", "gelu", approximate="none"),
    **_ops("pointwise", "clamp", min=None, max=None),
    **_ops("pointwise", "softplus", beta=1.0, threshold=20.0),
    **_ops("pointwise", "softshrink", "hardshrink", lambd=0.5),
    **_ops("pointwise", "threshold", threshold=REQUIRED, value=REQUIRED),
    **_ops("pointwise", "cast", dtype=REQUIRED),
    # two operands or three, which broadcast; each may be a number
    **_ops("pointwise", "add", "mul", "maximum", "minimum", "eq", "ne", "logical_and", "logical_or", commutative=True),
    **_ops("pointwise", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", commutative=True),
    **_ops("pointwise", "sub", "pow", "remainder", "fmod", "atan2", "lt", "le", "gt", "ge", "prelu"),
    **_ops("pointwise", "div", rounding_mode=None),
    **_ops("pointwise", "where"),  # (condition, where true, where false)
    # (x, running_mean, running_var, weight or None, bias or None)
    **_ops("pointwise", "batch_norm_eval", eps=1e-5),
    # (x): `dim` is always a tuple, ascending and not negative
    **_ops("reduction", "sum", "mean", "amax", "amin", "prod", "logsumexp", "any", "all", dim=REQUIRED, keepdim=False),
    **_ops("reduction", "argmax", "argmin", dim=REQUIRED, keepdim=False),
    **_ops("reduction", "var", "std", dim=REQUIRED, keepdim=False, correction=1.0),
    **_ops("reduction", "norm", dim=REQUIRED, keepdim=False, p=2.0),
    **_ops("normalization", "softmax", "log_softmax", dim=REQUIRED),
    # (x, weight or None, bias or None): `dim` are trailing; rms_norm has no bias
    **_ops("normalization", "layer_norm", dim=REQUIRED, eps=1e-5),
    **_ops("normalization", "rms_norm", dim=REQUIRED, eps=REQUIRED),
    **_ops("normalization", "group_norm", num_groups=REQUIRED, eps=1e-5),
    **_ops("normalization", "instance_norm", eps=1e-5),
    # (x, weight or None, bias or None, running_mean or None, running_var or None): by the batch's own statistics; running
    # ones, where there are any, are moved by `momentum` (1 / calls where None), and no output reads them
    **_ops("normalization", "batch_norm", momentum=0.1, eps=1e-5),
    **_ops("scan", "cumsum", "cumprod", "logcumsumexp", dim=REQUIRED),
    # linear (x, weight [out, in], bias [out] or None) = x @ weight.T + bias; matmul (a, b) as torch.matmul
    **_ops("product", "linear", "matmul"),
    **_ops("product", "einsum", equation=REQUIRED),  # letters in order of their first use: "ab,bc->ac"
    # (x, weight, bias or None)
    **_of_rank("convolution", "conv{n}d", stride=1, padding=0, dilation=1, groups=1),
    **_of_rank("convolution", "conv_transpose{n}d", stride=1, padding=0, output_padding=0, dilation=1, groups=1),
    **_of_rank(
        "pool",
        "avg_pool{n}d",
        kernel_size=REQUIRED,
        stride=REQUIRED,
        padding=0,
        ceil_mode=False,
        count_include_pad=True,
        divisor_override=None,
    ),
    **_of_rank("pool", "max_pool{n}d", kernel_size=REQUIRED, stride=REQUIRED, padding=0, dilation=1, ceil_mode=False),
    **_of_rank("pool", "adaptive_avg_pool{n}d", "adaptive_max_pool{n}d", output_size=REQUIRED),
    # reshape is left for what is neither dropping or adding ones, nor one merge, nor one split
    **_ops("view", "reshape", shape=REQUIRED),
    **_ops("view", "flatten", start_dim=REQUIRED, end_dim=REQUIRED),
    **_ops("view", "unflatten", dim=REQUIRED, sizes=REQUIRED),
    **_ops("view", "squeeze", "unsqueeze", dim=REQUIRED),  # a tuple: of the operand's dims, of the result's dims
    **_ops("view", "permute", dims=REQUIRED),
    **_ops("view", "expand", shape=REQUIRED),
    **_ops("view", "select", dim=REQUIRED, index=REQUIRED),
    **_ops("view", "slice", dim=REQUIRED, start=0, stop=REQUIRED, step=1),
    **_ops("view", "chunk", chunks=REQUIRED, dim=REQUIRED, index=REQUIRED),  # piece `index` of `chunks` equal ones
    **_ops("move", "cat", dim=REQUIRED),
    **_ops("move", "pad", padding=REQUIRED, mode="constant", value=0.0),  # torch's order: last dimension first
    **_ops("move", "flip", dim=REQUIRED),
    **_ops("move", "roll", shifts=REQUIRED, dim=REQUIRED),
    **_ops("move", "repeat", repeats=REQUIRED),
    **_ops("move", "tril", "triu", diagonal=0),
    **_ops("move", "pixel_shuffle", upscale_factor=REQUIRED),
    **_ops("move", "pixel_unshuffle", downscale_factor=REQUIRED),
    **_ops("move", "embedding"),  # (weight, indices)
    **_ops("move", "gather", "index_select", dim=REQUIRED),  # (x, indices)
    **_ops("create", "full", shape=REQUIRED, dtype=REQUIRED),  # (value)
    **_ops("create", "arange", start=0, end=REQUIRED, step=1, dtype=REQUIRED),
}
"""Op → what is known of it."""

SIZED = {"reshape": ("shape",), "unflatten": ("sizes",), "expand": ("shape",), "full": ("shape",), "arange": ("end",)}
SIZED |= {"slice": ("start", "stop")}
"""Op → attributes that are sizes: they follow the shapes and play no part in a fingerprint."""
SIZED_IF_UNKNOWN = ("output_size", "size")
"""Those of an unknown op, by the names that ATen has for them."""

RESHAPES = ("reshape", "flatten", "unflatten", "squeeze", "unsqueeze")
"""Views that keep the order of the elements."""
