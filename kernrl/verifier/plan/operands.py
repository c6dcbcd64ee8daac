"""What raw library calls ask of their operands.

PyTorch's Python functions check shapes, and then call operators that no longer do: given a weight that is too short, or a
scale that is no number, these read or write beyond their operands. A plan names such operators directly, so their contracts
are checked here, before anything runs. Operators that index (`gather`, `scatter`, `index`, `embedding` …) check their
indices themselves; an embedding bag checks its indices, and the order of its offsets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kernrl.verifier.plan import aten
from kernrl.verifier.plan.plan import AtenNode, TensorRef

MAX_MVLGAMMA = 16
"""Dimensions of a multivariate gamma function; each takes its operand's memory once."""

MAX_DEGREE = 64
"""Of an orthogonal polynomial."""

Args = Mapping[str, Any]
Problems = Iterator[str]


def misfit(node: AtenNode) -> str | None:
    """How a node's operands break the contract of its operator, as the end of a sentence; None if they do not."""
    name = aten.base_name(node.op)
    contract = _CONTRACTS.get("upsample" if "upsample_" in name else name)
    if contract is None:
        return None
    names = aten.argument_names(node.op)
    return next(contract(dict(zip(names, node.args, strict=False)) | node.kwargs), None)


def _vector(args: Args, name: str, size: int) -> Problems:
    """An operand of one number a channel, one after the other in memory."""
    value = args.get(name)
    if value is None:
        return
    if not isinstance(value, TensorRef):
        yield f"{name} is no tensor"
    elif value.shape != (size,) or (size > 1 and value.stride != (1,)):
        has = f"the shape {list(value.shape)} and strides {list(value.stride)}"
        yield f"{name} has {has} where {size} numbers in a row are read"


def _batch_norm(args: Args) -> Problems:
    x = args.get("input")
    if not isinstance(x, TensorRef) or len(x.shape) < 2:
        yield "input has no channels"
        return
    for name in ("weight", "bias", "running_mean", "running_var"):
        yield from _vector(args, name, x.shape[1])
    both = args.get("running_mean") is None, args.get("running_var") is None
    if both[0] != both[1] or (both[0] and args.get("training") is not True):
        yield "running_mean and running_var are missing"


def _layer_norm(args: Args) -> Problems:
    x, shape = args.get("input"), args.get("normalized_shape")
    if not isinstance(x, TensorRef) or not isinstance(shape, list | tuple) or not shape:
        yield "input or normalized_shape is missing"
        return
    if x.shape[-len(shape) :] != tuple(shape):
        yield f"normalized_shape {list(shape)} is not the end of the input's shape {list(x.shape)}"
    for name in ("weight", "bias"):
        value = args.get(name)
        if value is not None and (not isinstance(value, TensorRef) or value.shape != tuple(shape)):
            yield f"{name} has not the shape {list(shape)} that is normalised"


def _group_norm(args: Args) -> Problems:
    x, counts = args.get("input"), [n for name in ("N", "C", "HxW", "group") if type(n := args.get(name)) is int]
    if not isinstance(x, TensorRef) or len(x.shape) < 2 or len(counts) < 4:
        yield "input or its sizes are missing"
        return
    batch, channels, places, groups = counts
    if (batch, channels, places) != (*x.shape[:2], math.prod(x.shape[2:])) or groups < 1 or channels % groups:
        yield f"the sizes {counts} are not those of the input's shape {list(x.shape)}"
    for name in ("weight", "bias"):
        yield from _vector(args, name, channels)


def _weight_norm(args: Args) -> Problems:
    v, g, axis = args.get("v"), args.get("g"), args.get("dim", 0)
    if not isinstance(v, TensorRef) or not isinstance(g, TensorRef) or not v.shape:
        yield "v or g is missing"
    elif type(axis) is not int or axis not in (0, len(v.shape) - 1):
        yield f"dim {axis} is neither the first nor the last axis"
    elif g.shape != tuple(n if i == axis else 1 for i, n in enumerate(v.shape)):
        yield f"g has the shape {list(g.shape)} where v has {list(v.shape)}, along axis {axis}"


def _upsample(args: Args) -> Problems:
    x, sizes = args.get("self", args.get("input")), args.get("output_size")
    scales = [value for name, value in args.items() if name.startswith("scales")]
    if not isinstance(x, TensorRef) or not isinstance(sizes, list | tuple) or len(sizes) != len(x.shape) - 2:
        return  # it derives the one from the other, and checks
    for scale, before, after in zip(scales, x.shape[2:], sizes, strict=False):
        if scale is not None and not (isinstance(scale, int | float) and 0 < scale < 1e6 and abs(before * scale - after) <= 1):
            yield f"the scale {scale} does not lead from {before} to {after}"


def _grid_sampler(args: Args) -> Problems:
    for name in ("interpolation_mode", "padding_mode"):
        if args.get(name) not in (0, 1, 2):
            yield f"{name} is {args.get(name)}"


def _fourier(args: Args) -> Problems:
    x, axes, scaled = args.get("self"), args.get("dim"), args.get("normalization")
    if not isinstance(x, TensorRef) or not isinstance(axes, list | tuple):
        yield "self or dim is missing"
        return
    if not axes or len(set(axes)) < len(axes) or not all(type(axis) is int and 0 <= axis < len(x.shape) for axis in axes):
        yield f"dim {list(axes)} are not axes of the shape {list(x.shape)}"
        return
    if scaled not in (0, 1, 2):
        yield f"normalization is {scaled}"
    if x.dtype.startswith("complex") == ("onesided" in args):
        yield f"self is {x.dtype}"
    length = args.get("last_dim_size")
    if "last_dim_size" in args and (type(length) is not int or length < 1 or x.shape[axes[-1]] != length // 2 + 1):
        yield f"{length} numbers do not come of {x.shape[axes[-1]]} frequencies"


def _embedding_bag(args: Args) -> Problems:
    table, rows, starts = (args.get(name) for name in ("weight", "indices", "offsets"))
    if not isinstance(table, TensorRef) or not isinstance(rows, TensorRef) or not isinstance(starts, TensorRef):
        yield "weight, indices or offsets is missing"
        return
    bags = starts.numel - (args.get("include_last_offset", False) is not False)
    if (len(table.shape), len(rows.shape), len(starts.shape)) != (2, 1, 1) or bags < 1:
        yield f"the shapes are {list(table.shape)}, {list(rows.shape)} and {list(starts.shape)}"
    if (mode := args.get("mode", 0)) not in (0, 1, 2):
        yield f"mode is {mode}"
    weights = args.get("per_sample_weights")
    fits = isinstance(weights, TensorRef) and (weights.shape, weights.dtype, mode) == (rows.shape, table.dtype, 0)
    if weights is not None and not fits:
        yield "per_sample_weights are not one number of the table's dtype for each index of a sum"


def _histc(args: Args) -> Problems:
    low, high = args.get("min", 0), args.get("max", 0)
    if not isinstance(low, int | float) or not isinstance(high, int | float) or not low < high:
        yield "without min and max, or with equal ones, it reads the range of its operand on the host"


def _nanmedian(args: Args) -> Problems:
    if "dim" not in args:
        yield "without dim, it reads the place of the median on the host"


def _pdist(args: Args) -> Problems:
    x = args.get("self")
    if not isinstance(x, TensorRef) or len(x.shape) != 2:
        yield "self is no matrix"


def _polynomial(args: Args) -> Problems:
    n = args.get("n")
    if not isinstance(n, int | float) or not n <= MAX_DEGREE:
        yield f"n is no number of at most {MAX_DEGREE}, and the call takes as many steps"


def _mvlgamma(args: Args) -> Problems:
    p = args.get("p")
    if type(p) is not int or not 1 <= p <= MAX_MVLGAMMA:
        yield f"p is {p}, and the call takes as many times its operand's memory"


def _repeat(args: Args) -> Problems:
    if args.get("output_size") is not None:
        yield "output_size is given, which nothing checks"


def _cdist(args: Args) -> Problems:
    a, b = args.get("x1"), args.get("x2")
    if not isinstance(a, TensorRef) or not isinstance(b, TensorRef):
        yield "x1 or x2 is missing"
    elif min(len(a.shape), len(b.shape)) < 2 or a.shape[:-2] != b.shape[:-2] or a.shape[-1:] != b.shape[-1:]:
        yield "x1 and x2 do not go together"


_CONTRACTS: dict[str, Callable[[Args], Problems]] = {
    "native_batch_norm": _batch_norm,
    "cudnn_batch_norm": _batch_norm,
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": _layer_norm,
    "rms_norm": _layer_norm,
    "native_group_norm": _group_norm,
    "_weight_norm_interface": _weight_norm,
    "upsample": _upsample,
    "grid_sampler_2d": _grid_sampler,
    "grid_sampler_3d": _grid_sampler,
    **dict.fromkeys(aten.FOURIER, _fourier),
    **dict.fromkeys(aten.BAGS, _embedding_bag),
    "histc": _histc,
    "nanmedian": _nanmedian,
    "_pdist_forward": _pdist,
    "mvlgamma": _mvlgamma,
    **dict.fromkeys(aten.POLYNOMIALS, _polynomial),
    "repeat_interleave": _repeat,
    "_cdist_forward": _cdist,
}
"""Operator → what is wrong with its arguments by name, first things first."""
