"""A reference run in float64, or with the rounding of a lower precision modelled on it, op by op."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.verifier.base.compat import called_directly, normalisations
from kernrl.verifier.base.float64_mode import widened_call
from kernrl.verifier.base.precision import as_pairs, is_float8
from kernrl.verifier.judge.truth.discontinuities import SEARCHING, Jumps, may_jump
from kernrl.verifier.judge.truth.float64_convolutions import convolution, transposed_convolution
from kernrl.verifier.judge.truth.unit_operands import in_range

STEP_ROUNDOFFS = 2.0
"""Roundings of an op such as tanh, which kernels write with exponentials and quotients."""

MOST_EXPONENT = 80.0
"""Beyond it, or a little more, exp overflows in float32."""

SERIAL_SHARE = 0.35
"""Error of a sequential sum of n numbers, in roundoffs times √n: a random walk of partial sums (1/√6 for numbers of random
sign, 1/3 for numbers of one sign)."""

_TF32_CUT = {torch.float32: (torch.int32, -(1 << 13)), torch.float64: (torch.int64, -(1 << 42))}
"""Of a dtype's 23 or 52 stored bits of a number, TF32 keeps 10: an integer of that size, and the mask."""


TF32_ROUNDING = 2.0**-10 / math.sqrt(3.0)
"""RMS of the relative error of an operand that is cut to TF32, or rounded away from zero."""


Products = Literal["cut", "nearest", "by lot"]
"""How a product's operands become TF32: towards zero, to the nearest number, or to either number beside them."""


def cut_to_tf32(x: Tensor) -> Tensor:
    """Truncated to TF32's 11 significant bits, as tensor cores do with an operand that has not been rounded."""
    bits, cut = _TF32_CUT[x.dtype]
    return (x.view(bits) & cut).view(x.dtype)


def _to_tf32(x: Tensor, how: Products) -> Tensor:
    """An operand as a product reads it."""
    return cut_to_tf32(x if how == "cut" else _halfway(x) if how == "nearest" else _dithered(x))


def _halfway(x: Tensor) -> Tensor:
    """x further from zero by half a unit of TF32's last place, so that what it is cut to is the number nearest to it."""
    bits, cut = _TF32_CUT[x.dtype]
    return torch.where(torch.isfinite(x), (x.view(bits) - cut // 2).view(x.dtype), x)


def _dithered(x: Tensor) -> Tensor:
    """x further from zero by up to one unit of TF32's last place, so that what it is cut to is either number beside it."""
    return x.addcmul(x, torch.empty_like(x, dtype=torch.float32).uniform_(0.0, 2.0**-10).to(x.dtype))


_OPERANDS = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "convolution"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addmv"), (1, 2)),
}
_WITHOUT_ROUNDING = frozenset((
    *("round", "floor", "ceil", "trunc", "sign", "sgn", "heaviside", "abs", "neg", "copysign", "relu", "threshold"),
    *("clamp", "clamp_min", "clamp_max", "hardtanh", "maximum", "minimum", "fmax", "fmin", "where", "masked_fill"),
))  # fmt: skip
"""Their results are operands, or whole numbers, which a cast to an integer would cut if they were moved."""
_IN_STEPS = frozenset((
    *("tanh", "sigmoid", "silu", "mish", "gelu", "softplus", "elu", "log_sigmoid_forward", "expm1", "log1p", "erf"),
    *("log_sigmoid", "celu", "selu", "softsign", "tanhshrink", "sinh", "cosh"),
))  # fmt: skip
"""Kernels write them as several operations, each with a rounding."""
_TRANSFORMS = frozenset(("_fft_r2c", "_fft_c2c", "_fft_c2r"))
"""Kernels write them as products with a table of roots of unity."""
_AVERAGES = ("avg_pool", "_adaptive_avg_pool")
_SUMS = frozenset(("sum", "mean", "var", "var_mean", "std", "linalg_vector_norm", "logsumexp"))


@dataclass(frozen=True, slots=True)
class _Kind:
    """What `Exact` needs to know of an operator."""

    name: str
    parts: Callable[..., Any] | None
    """Its decomposition, where it runs in steps."""
    operands: tuple[int, ...]
    """Positions of a product's operands."""
    roundings: float
    """Of each element of its result; 0 where it does not round, or not each."""
    jumps: bool


@functools.cache
def _kind(func: Any) -> _Kind:
    """Of an operator, looked up once: a reference calls thousands."""
    name: str = func.overloadpacket.__name__
    stem = name.rstrip("_")
    rounds = torch.Tag.pointwise in func.tags and stem not in _WITHOUT_ROUNDING
    return _Kind(
        name,
        normalisations().get(func),
        _OPERANDS.get(name, ()),
        (STEP_ROUNDOFFS if stem in _IN_STEPS else 1.0) if rounds else 0.0,
        may_jump(name),
    )


def rounds(func: Any) -> bool:
    """Whether an operator computes new numbers, and does not only move or choose among what it is given."""
    kind = _kind(func)
    computes = kind.roundings or kind.operands or kind.parts
    return bool(computes) or kind.name in _SUMS | _TRANSFORMS or kind.name.startswith(_AVERAGES)


@called_directly
class Exact(TorchDispatchMode):
    """Runs float64 convolutions as matrix products. `tf32`: how operands of products are rounded to TF32; `roundoff`
    perturbs every result at random, as rounding in that precision would; `jumps` sees to ops whose result jumps; `narrow` are
    the dtypes in place of which everything is `wide` (`base/float64_mode.py`)."""

    def __init__(
        self, *, tf32: Products | None = None, roundoff: float = 0.0, jumps: Jumps | None = None, extremes: bool = False,
        narrow: frozenset[torch.dtype] = frozenset(), wide: torch.dtype = torch.float64, amplified: float = 1.0,
    ):  # fmt: skip
        """`amplified`: under `tf32`, operands are also off by so many roundings at random. `extremes`: NaN stands where very
        large numbers have no answer, see `_contracted` and `_summed`."""
        super().__init__()
        self._extremes, self._amplified = extremes, amplified
        self._tf32: Products | None = tf32
        self._roundoff, self._jumps = roundoff, jumps
        self._narrow, self._wide = narrow, wide

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._narrow:
            args, kwargs = widened_call(func, args, kwargs, self._narrow, self._wide)
        return self._rounding(func, args, kwargs) if self._roundoff else self._run(func, args, kwargs)

    def _rounding(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The operation as in a program of lower precision: norms and softmax in steps, sums sequential."""
        kind, share = _kind(func), self._roundoff
        name = kind.name
        if kind.parts is not None:
            with self:
                result = kind.parts(*args, **kwargs)
            if name not in ("_softmax", "_log_softmax"):
                return result
            result = _read_twice(name, result, args[0], share)
            return _contracted(result, args[0], args[1], True, share) if self._extremes else result
        if name.startswith("pow") and isinstance(args[-1], Tensor):
            args = (*args[:-1], _whole(args[-1]))
        args = in_range(name, args)
        if kind.operands:
            left, right = (args[i] for i in kind.operands)
            terms = right[0].numel() if name == "convolution" else left.shape[-1]
            moved = perturbed(left, share * SERIAL_SHARE * math.sqrt(terms))
            return self._run(func, [moved if a is left else a for a in args], kwargs)
        if name in _TRANSFORMS:
            terms = math.prod(args[0].shape[axis] for axis in args[1])
            return self._run(func, (perturbed(args[0], share * SERIAL_SHARE * math.sqrt(terms)), *args[1:]), kwargs)
        result = self._run(func, args, kwargs)
        if name in _SUMS:
            first = result[0] if isinstance(result, tuple) else result
            serial = share * SERIAL_SHARE * math.sqrt(args[0].numel() / max(first.numel(), 1))
            result = self._run(func, (perturbed(args[0], serial), *args[1:]), kwargs)
            if name == "logsumexp" and self._extremes:
                result = _contracted(result, args[0], args[1], result.dim() == args[0].dim(), share)
            if name in ("var", "var_mean", "std") and self._extremes:
                result = _summed(result, args[0], args[1] if len(args) > 1 else kwargs.get("dim"))
            share = serial
        elif not kind.roundings:
            return result
        else:
            share *= kind.roundings
        for y in map(as_pairs, result if isinstance(result, tuple) else (result,)):
            if y.is_floating_point() and not is_float8(y.dtype):
                y.addcmul_(_within_range(y), _noise(y), value=share)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        args, kind = list(args), _kind(func)
        if self._jumps and kind.jumps and self._jumps.takes(args):
            return self._jumps.run(func, args, kwargs)
        if self._jumps and kind.name in SEARCHING:
            return self._jumps.search(func, args, kwargs)
        if self._tf32:
            for i in kind.operands:
                x = as_pairs(args[i])
                if self._amplified > 1.0:
                    x = perturbed(x, self._amplified * TF32_ROUNDING)
                rounded = _to_tf32(x, self._tf32)
                args[i] = torch.view_as_complex(rounded) if args[i].is_complex() else rounded
        if kind.name != "convolution" or args[0].dtype != torch.float64 or args[0].dim() != args[1].dim():
            return func(*args, **kwargs)
        x, w, bias, stride, padding, dilation, transposed, output_padding, groups = args
        dims = x.dim() - 2
        stride, padding, dilation, output_padding = (
            [*v, *[v[0]] * (dims - len(v))] for v in (list(stride), list(padding), list(dilation), list(output_padding))
        )
        if transposed:
            y = transposed_convolution(x, w, stride, padding, dilation, output_padding, groups)
        else:
            y = convolution(x, w, stride, padding, dilation, groups)
        return y if bias is None else y + bias.reshape(-1, *[1] * dims)


def _noise(x: Tensor) -> Tensor:
    """float32 of mean 0 and variance 1 in x's shape; uniform, as rounding errors are, and cheap."""
    return torch.empty_like(x, dtype=torch.float32).uniform_(-math.sqrt(3.0), math.sqrt(3.0))


def _within_range(x: Tensor) -> Tensor:
    """x with its infinities, such as a mask's, made the largest finite numbers: any share of an infinity is infinite, too.

    A NaN becomes 0, which changes no sum with it. `clamp` would take 40 times as long on tensors without contents.
    """
    return x.nan_to_num(0.0)


def perturbed(x: Tensor, share: float) -> Tensor:
    """A tensor with a random relative error of RMS `share` on each number, float8 and integers as they are."""
    if x.is_complex():
        return torch.view_as_complex(perturbed(as_pairs(x), share))
    if not x.is_floating_point() or is_float8(x.dtype):
        return x
    return x.addcmul(_within_range(x), _noise(x).to(x.dtype), value=share)


def _read_twice(name: str, y: Tensor, x: Tensor, share: float) -> Tensor:
    """A softmax (or its logarithm) y of x whose largest number and whose shares read x rounded apart.

    A fused kernel computes x once for each, and a compiler may contract the one and not the other to multiply-adds: off by a
    rounding of x, which is as much as the shares change by where x is large. By as much as a share at most.
    """
    moved = (_within_range(x) * share).clamp(-1.0, 1.0) * _noise(x)
    return (y + moved if name == "_log_softmax" else y + y * moved).to(y.dtype)


def _contracted(y: Tensor, x: Tensor, dim: Any, keepdim: bool, share: float) -> Tensor:
    """What exp(x − maximum) over `dim` led to, y, with NaN for rows of very large x.

    Where x is a product that the kernel computes itself, compilers contract product and difference to one multiply-add. It is
    then not 0 for the maximum but the rounding of x, whose exponential may be infinite.
    """
    largest = torch.amax(x, dim, keepdim=keepdim)
    return torch.where(largest.abs() * share > MOST_EXPONENT, math.nan, y)


def _summed(moments: Any, x: Tensor, dim: Any) -> Any:
    """Variances and means of x over `dim`, NaN where its sum overflows: eager divides before it adds, kernels need not."""
    results = moments if isinstance(moments, tuple) else (moments,)
    total = torch.sum(x, dim, keepdim=results[0].dim() == x.dim())
    marked = tuple(torch.where(torch.isfinite(total), y, math.nan) for y in results)
    return marked if isinstance(moments, tuple) else marked[0]


def _whole(exponent: Tensor) -> Tensor:
    """Exponents that are whole numbers but for a rounding, made whole: others give NaN of negative numbers."""
    near = exponent.round()
    return torch.where((exponent - near).abs() <= 1e-6 * near.abs(), near, exponent)
