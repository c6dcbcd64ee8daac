"""The regimes of inputs: transformations of the task's own draws, in which mistakes show that the own inputs hide.

Every regime exists for a kind of mistake, and names it (`cause`) to the author of a candidate that fails there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kernrl.verifier.base.precision import UNIT_ROUNDOFF
from kernrl.verifier.judge.structure import Freedom, Structure

NOMINAL = "nominal"
"""The regime of the task's own `get_inputs`, with parameters near their initial values."""

TIMED = "timed"
"""Drawn as `nominal`: the inputs of timed calls, among them those that are judged."""

LOW = "low"
"""All numbers that reach a reduction are very negative: biases where the module has any, inputs otherwise."""
LOW_BIAS, LOW_INPUT = -300.0, -1000.0

HUGE = "huge"
"""Numbers beyond float16 and 16-bit integers. Not under the 16-bit policies: fp16 ends there, and of a softmax of products,
which has one share left, a rounding decides which."""
HUGE_FACTOR = 2.0**17
"""A product of four such numbers is not yet a millionth of float32's largest."""


@dataclass(frozen=True, slots=True)
class Extremes:
    """How far the regimes go under a precision policy."""

    shift: float
    """The largest mean, in spreads: in 16 bits, numbers far from zero have no spread left."""
    tiny: float = 1e-6
    """Factor on rows of tiny numbers: below the epsilons that are written for others, and a fourth power is not lost."""
    lowest: float = -20_000.0
    """Added to half the rows of inputs that are very negative, where padding with -10,000 wins a maximum."""


def extremes(precision: str) -> Extremes:
    """Those of a policy. Under fp16, numbers end at 65,504, and below 6e-5 they lose their digits."""
    shift = 1 / (8 * UNIT_ROUNDOFF[precision])
    return Extremes(shift, tiny=1e-4, lowest=LOW_INPUT) if precision == "fp16" else Extremes(shift)


@dataclass(frozen=True, slots=True)
class Regime:
    """One kind of draw."""

    change: Callable[[Tensor, Tensor, Extremes], Tensor]
    """Function of an input (float32) with mean 0 and deviation 1, where it is not zero, of uniform numbers in [0, 1) of its
    shape, and of how far it may go. For pointwise regimes the second is left unread."""
    words: str
    """What the inputs are, as said to the author of a candidate."""
    cause: str = ""
    """What usually fails there and how to write it instead."""
    pointwise: bool = True
    """Whether each element is changed by itself."""
    own_units: bool = False
    """Whether `change` is given the task's own numbers, not those with mean 0 and deviation 1."""
    wide: bool = False
    """Whether parameters that start as one number, or with one sign, get both signs and magnitudes above one."""
    reach: float = 1.5
    """The largest magnitude of wide parameters, over the larger of one and their initial values."""
    ends: float = 1.0
    """Factor on the last row of each parameter."""
    finite: bool = True


SHIFTS = {"shifted": 64.0, "far": 1000.0}
"""Mean of these regimes' inputs, in spreads."""


def uniform_by_rows(shape: torch.Size, device: torch.device) -> Tensor:
    """Uniform numbers for a regime that is not pointwise. The first ones of n rows are one from each n-th of [0, 1), so that
    what few rows get by lot differs as far as it can."""
    u = torch.rand(shape, device=device)
    if u.dim() > 1 and u.numel():
        first = u.reshape(u.shape[0], -1)[:, 0]
        # less than one, also in float32
        first.add_(torch.randperm(len(first), device=device)).div_(len(first)).clamp_(max=1 - 2.0**-24)
    return u


def _rows(u: Tensor) -> Tensor:
    """One uniform number for each row (index of the first axis)."""
    return u.reshape(u.shape[0], -1)[:, 0].reshape(-1, *[1] * (u.dim() - 1))


def _mixed(z: Tensor, u: Tensor, to: Extremes) -> Tensor:
    """Each row as it is, +3, −3, ×64, ×1e-3, ×1e-6 or mostly zeros, at random."""
    if not z.dim():
        return z
    lot = (_rows(u) * 7).floor()
    factor = torch.ones_like(lot).masked_fill_(lot == 2, 64.0).masked_fill_(lot == 3, 1e-3).masked_fill_(lot == 6, to.tiny)
    made = torch.addcmul(3.0 * (lot == 1) - 3.0 * (lot == 5), z, factor)
    return made.masked_fill_((lot == 4) & (u >= 0.05), 0.0)


def _one_hot(z: Tensor, u: Tensor, _: Extremes) -> Tensor:
    return torch.zeros_like(u).scatter_(-1, u.argmax(-1, keepdim=True), 1.0) if u.dim() else u.round()


def _level_rows(z: Tensor, u: Tensor, _: Extremes) -> Tensor:
    """Each row of the last axis filled with one of its numbers; on a third of the samples, all elements alike."""
    if not z.dim():
        return z
    return torch.where(_rows(u) < 1 / 3, z.reshape(z.shape[0], -1)[:, :1].reshape(_rows(u).shape), z[..., :1].expand_as(z))


def _ends(z: Tensor, _u: Tensor, _: Extremes) -> Tensor:
    """Each row larger at the last index of each axis, most in the last corner."""
    z = z.clone()
    for axis in range(1 if z.dim() > 1 else 0, z.dim()):
        z.narrow(axis, z.shape[axis] - 1, 1).mul_(ENDS)
    return z


def _nonfinite(x: Tensor, u: Tensor, _: Extremes) -> Tensor:
    """In about half of the samples, one element is infinite or NaN."""
    if not x.dim():
        return x
    flat = u.reshape(u.shape[0], -1)
    lot = flat[:, :1]
    value = torch.where(lot < 0.2, torch.inf, torch.where(lot < 0.4, -torch.inf, torch.nan))
    place = torch.zeros_like(flat, dtype=torch.bool).scatter_(1, flat.argmax(1, keepdim=True), lot < 0.5)
    return torch.where(place, value, x.reshape(flat.shape)).reshape(x.shape)


ENDS = 6.0
"""How much larger numbers are at the end of each axis."""

_VARIANCE = "a variance computed as E[x²] − E[x]² loses all its digits here: subtract the mean first, then square"
_PARAMETERS = "weights, biases and slopes may be negative or above one: take no absolute value, and no max(x, a·x)"

REGIMES: dict[str, Regime] = {
    "large": Regime(
        lambda z, *_: z * 64.0, "inputs 64 times as large as usual",
        "exp overflows, or an approximation holds for small numbers alone: subtract the maximum, and use stable forms",
    ),
    HUGE: Regime(
        lambda z, *_: z * HUGE_FACTOR, "inputs many thousand times as large as usual",
        "float16 or a 16-bit integer overflows, exp overflows, or a bound or a padding constant is too near: keep products and "
        "sums in float32, subtract the maximum, bound only what the reference bounds, and pad a maximum with -inf",
    ),
    "small": Regime(
        lambda z, *_: z * 1e-3, "inputs a thousandth as large as usual",
        "an epsilon is in the wrong place or too large, or small numbers cancel",
    ),
    "offset": Regime(lambda z, *_: z + 3.0, "inputs that are nearly all positive", "a mean is left out or taken twice"),
    "negative": Regime(
        lambda z, *_: z - 3.0, "inputs that are nearly all negative and parameters of both signs",
        f"negative numbers are treated as positive ones, or padding with 0 wins a maximum; {_PARAMETERS}", wide=True,
    ),
    "parameters": Regime(
        lambda x, *_: x, "parameters of both signs and above one", _PARAMETERS, own_units=True, wide=True,
    ),
    "shifted": Regime(lambda z, *_: z + SHIFTS["shifted"], "inputs whose mean is 64 times their spread", _VARIANCE),
    "far": Regime(lambda z, *_: z + SHIFTS["far"], "inputs whose mean is 1,000 times their spread", _VARIANCE),
    LOW: Regime(
        lambda x, *_: x, "numbers that are all very negative",
        "a running maximum starts at 0, or masked lanes load 0 or -10,000: start at -inf, and load -inf for a maximum",
        pointwise=False, own_units=True,
    ),
    "spread": Regime(
        lambda z, *_: z**3, "numbers of very different sizes, and parameters up to 8 times as large as usual",
        "a bound (of a clamp, a hardtanh, a relu6, a threshold) is off, or on the wrong side", wide=True, reach=8.0,
    ),
    "ends": Regime(
        _ends, "inputs and parameters that are largest at the end of each axis",
        "a mask or a loop leaves out the last element", pointwise=False, ends=ENDS,
    ),
    "ties": Regime(
        lambda z, *_: z.round(), "inputs of a few whole numbers, with many equal elements",
        "one of several equal elements is dropped or counted twice, or an exact zero or bound goes to the wrong branch",
        wide=True,
    ),
    "level": Regime(
        _level_rows, "rows whose elements are all equal",
        "a variance of zero or a maximum that all elements share is not handled: keep epsilon inside the root",
        pointwise=False,
    ),
    "sparse": Regime(
        lambda z, u, _: z * (u < 0.05), "inputs that are mostly zero",
        "zeros are skipped, or divided by", pointwise=False,
    ),
    "one_hot": Regime(
        _one_hot, "rows with a single one", "an index, a stride or a tail is off, or a statistic is taken over other elements",
        pointwise=False,
    ),
    "mixed": Regime(
        _mixed, "rows of different sizes, signs and offsets",
        "a statistic of one row, or of a sample of rows, is used for others", pointwise=False, wide=True,
    ),
    "nonfinite": Regime(
        _nonfinite, "single elements that are infinite or NaN",
        "one row leaks into another, or 0 · inf or inf − inf is computed where eager does not: mask by tl.where, not by "
        "products, and interpolate by (1 − t)·a + t·b, not by a + t·(b − a)",
        pointwise=False, own_units=True, finite=False,
    ),
}  # fmt: skip
"""Regime → how its inputs are made of the task's own."""

WIDE_REGIMES = tuple(name for name, rule in REGIMES.items() if rule.wide)


def changed(x: Tensor, regime: str, structure: Structure, to: Extremes, uniform: Tensor | None) -> Tensor:
    """An input of the task's own, as a regime changes it; float32, of the same shape.

    `uniform` (same shape) may be None for pointwise regimes.
    """
    rule = REGIMES[regime]
    x = x.float()
    if structure.freedom not in (Freedom.POINTWISE, Freedom.FREE):
        return x
    if not rule.pointwise and structure.freedom is not Freedom.FREE:
        return x
    z = x if rule.own_units else (x - structure.mean) / structure.std
    given = uniform if uniform is not None else z
    made = z + min(to.shift, SHIFTS[regime]) if regime in SHIFTS else rule.change(z, given, to)
    return made.masked_fill(x == 0, 0.0) if rule.pointwise else made


def lowered(x: Tensor, structure: Structure, to: Extremes, uniform: Tensor) -> Tensor:
    """An input moved far below zero, with at least as much spread as numbers of the policy's type have there.

    Half the rows are moved further: padding with -10,000 wins their maximum, and products of the others' are no larger than
    a softmax has an answer for (`_contracted` in `truth/exact.py`).
    """
    if structure.freedom is Freedom.FREE and x.dim():
        lot = _rows(uniform)
        by = torch.full_like(lot, to.lowest).masked_fill_(lot < 0.5, LOW_INPUT)
    else:
        by = torch.full_like(x, LOW_INPUT)
    spread = (by / (-to.shift * structure.std)).clamp_min_(1.0)
    return torch.addcmul(by, x, spread).masked_fill_(x == 0, 0.0)
