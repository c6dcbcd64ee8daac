"""The right answer: the reference in float64, and eager PyTorch's error against it under the task's precision policy."""

from __future__ import annotations

import copy
import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.verifier.base.clock import Clock
from kernrl.verifier.base.compat import called_directly, normalisations
from kernrl.verifier.base.float64_mode import narrow_dtypes, widened_call
from kernrl.verifier.base.nested import flatten, rebuild
from kernrl.verifier.base.precision import COMPUTE_DTYPE, UNIT_ROUNDOFF, cast_module, is_float8, policy_flags, widened
from kernrl.verifier.judge.compare import ErrorLevel, Inputs, error_figures, error_level, level_figures
from kernrl.verifier.judge.discontinuities import Jumps, may_jump, slack
from kernrl.verifier.judge.inputs import HeldState, TaskInputs, bind
from kernrl.verifier.judge.other_roundings import EagerRoundings, OtherRoundings, Rounded
from kernrl.verifier.judge.slices import Slices, StateWatch

log = logging.getLogger(__name__)

PERTURBATION_ROUNDOFFS = 2.0
"""Eager's error counts as at least the effect of this many roundings of each input."""

STEP_ROUNDOFFS = 2.0
"""Roundings of an op such as tanh, which kernels write with exponentials and quotients."""

MOST_EXPONENT = 80.0
"""Beyond it, or a little more, exp overflows in float32."""

FEW_ERRORS, MOST_RUNS = 32, 8
"""An output with fewer independent errors is modelled several times, until there are that many, or so many runs."""

UNLUCKY_RUNS, MOST_UNLUCKY = 32, 4.0
"""Further runs for an output that is beyond its tolerance by at most so many times, which is also how many times the error of
the runs before theirs counts as at most. Where one number holds all of an error (the rounding of a column, which every row
shares), an equally large honest one is more than twice the largest of 3 others in 7 of 100 draws, of 8 in 1 of 120, and of
3 + 32 in 1 of 10⁴."""

RERUN_BYTES = 16 << 20
"""Larger outputs (all of them, in float64) are modelled once, which bounds memory and time."""

OTHER_ROUNDINGS, MOST_LUCK = 16, 16.0
"""Runs of a 16-bit policy with other roundings than eager's, and how many times eager's error theirs counts as at most: beyond
that a result that explodes in one of them would accept anything."""

SERIAL_SHARE = 0.35
"""Error of a sequential sum of n numbers, in roundoffs times √n: a random walk of partial sums (1/√6 for numbers of random
sign, 1/3 for numbers of one sign)."""

_TF32_CUT = {torch.float32: (torch.int32, -(1 << 13)), torch.float64: (torch.int64, -(1 << 42))}
"""Of a dtype's 23 or 52 stored bits of a number, TF32 keeps 10: an integer of that size, and the mask."""

UNFOLD_BYTES = 2 << 30
"""Largest unfolded block of a float64 convolution; it takes as many samples at a time as fit."""


@contextmanager
def default_dtype(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Within, torch's default dtype is `dtype`, so that a reference's `torch.zeros(n)` is as wide as the rest.

    On the meta device, for this thread alone: a reference is rehearsed in the caller's process, whose other threads go on.
    """
    if device.type == "meta":
        with _MadeAs(dtype):
            yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _MadeAs(TorchFunctionMode):
    """Gives this dtype to tensors that are made of nothing and would have the default one."""

    _MAKERS: ClassVar = {
        *(torch.zeros, torch.ones, torch.empty, torch.full, torch.tensor, torch.rand, torch.randn, torch.arange, torch.eye),
        *(torch.linspace, torch.logspace, torch.hann_window, torch.hamming_window, torch.blackman_window, torch.kaiser_window),
    }

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        named = (kwargs or {}).get("dtype") is not None
        return made.to(self._dtype) if func in self._MAKERS and not named and made.dtype == torch.get_default_dtype() else made


def convolution(x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Tensor:
    """N-dimensional cross-correlation as matrix products over unfolded windows: of some samples at a time, or of a part of one.

    x [N, C, *spatial], w [O, C/groups, *kernel] → [N, O, *out]. On an H200, cuDNN's float64 convolutions run 10 to 170
    times slower than its float32 ones, while a float64 matrix product keeps pace with float32.
    """
    dims, kernel = x.dim() - 2, w.shape[2:]
    pad = [p for size in reversed(padding) for p in (size, size)]
    sizes = [x.shape[2 + i] + 2 * padding[i] for i in range(dims)]
    out = [(sizes[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(dims)]
    columns, places = w[0].numel(), math.prod(out)
    weight = w.reshape(groups, w.shape[0] // groups, columns)
    y = x.new_empty(x.shape[0], groups, w.shape[0] // groups, *out)
    unfolded = x.shape[1] * math.prod(kernel) * places
    lines = max(1, UNFOLD_BYTES * out[0] // max(unfolded * x.element_size(), 1))
    for part, into in _samples(x, y, unfolded):
        part = torch.nn.functional.pad(part, pad) if any(pad) else part.contiguous()
        step = part.stride()[2:]
        windows = part.as_strided(
            (*part.shape[:2], *kernel, *out),
            (
                *part.stride()[:2],
                *(s * d for s, d in zip(step, dilation, strict=True)),
                *(s * t for s, t in zip(step, stride, strict=True)),
            ),
        )
        for some, where in zip(windows.split(lines, 2 + dims), into.split(lines, 3), strict=True):
            product = torch.matmul(weight, some.reshape(part.shape[0], groups, columns, -1))
            where.copy_(product.reshape(where.shape))
    return y.reshape(x.shape[0], w.shape[0], *out)


def _samples(x: Tensor, y: Tensor, unfolded: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Samples of x and of y as many at a time as unfold to `UNFOLD_BYTES`, at `unfolded` elements a sample."""
    at_once = max(1, UNFOLD_BYTES // max(unfolded * x.element_size(), 1))
    return zip(x.split(at_once), y.split(at_once), strict=True)


def transposed_convolution(
    x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], output_padding: list[int], groups: int
) -> Tensor:
    """The transpose of `convolution`: zeros between the inputs, then a plain one with the kernel mirrored.

    x [N, C, *spatial], w [C, O/groups, *kernel] → [N, O, *out].
    """
    dims, kernel = x.dim() - 2, w.shape[2:]
    full = [dilation[i] * (kernel[i] - 1) for i in range(dims)]
    mirrored = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).transpose(1, 2)
    mirrored = mirrored.reshape(groups * w.shape[1], w.shape[0] // groups, *kernel).flip(tuple(range(2, 2 + dims)))
    spread = [(x.shape[2 + i] - 1) * stride[i] + 1 for i in range(dims)]
    out = [spread[i] + full[i] - 2 * padding[i] + output_padding[i] for i in range(dims)]
    y = x.new_empty(x.shape[0], mirrored.shape[0], *out)
    for part, into in _samples(x, y, x.shape[1] * math.prod(kernel) * math.prod(out)):
        padded = part.new_zeros(
            *part.shape[:2], *(spread[i] + 2 * max(full[i] - padding[i], 0) + output_padding[i] for i in range(dims))
        )
        inner = padded
        for i in range(dims):
            inner = inner.narrow(2 + i, max(full[i] - padding[i], 0), spread[i])
        inner[(slice(None), slice(None), *(slice(None, None, s) for s in stride))] = part
        for i in range(dims):  # a padding beyond the kernel's reach crops
            crop = max(padding[i] - full[i], 0)
            padded = padded.narrow(2 + i, crop, padded.shape[2 + i] - 2 * crop)
        into.copy_(convolution(padded, mirrored, [1] * dims, [0] * dims, dilation, groups))
    return y


def cut_to_tf32(x: Tensor) -> Tensor:
    """Truncated to TF32's 11 significant bits, as tensor cores do with an operand that has not been rounded."""
    bits, cut = _TF32_CUT[x.dtype]
    return (x.view(bits) & cut).view(x.dtype)


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


def _rounds(func: Any) -> bool:
    """Whether an operator computes new numbers, and does not only move or choose among what it is given."""
    kind = _kind(func)
    return bool(kind.roundings or kind.operands or kind.parts) or kind.name in _SUMS or kind.name.startswith(_AVERAGES)


@called_directly
class Exact(TorchDispatchMode):
    """Runs float64 convolutions as matrix products. `tf32` truncates the operands of products as tensor cores do; `roundoff`
    perturbs every result at random, as rounding in that precision would; `jumps` sees to ops whose result jumps; `narrow` are
    the dtypes in place of which everything is float64 (`base/float64_mode.py`)."""

    def __init__(
        self, *, tf32: bool = False, dithered: bool = False, roundoff: float = 0.0, jumps: Jumps | None = None,
        extremes: bool = False, narrow: frozenset[torch.dtype] = frozenset(),
    ):  # fmt: skip
        """`dithered`: operands are rounded to TF32 up or down by lot, as another library may round them. `extremes`:
        NaN stands where very large numbers have no answer, see `_contracted` and `_summed`."""
        super().__init__()
        self._dithered, self._extremes = dithered, extremes
        self._tf32, self._roundoff, self._jumps, self._narrow = tf32, roundoff, jumps, narrow

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._narrow:
            args, kwargs = widened_call(func, args, kwargs, self._narrow)
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
        if kind.operands:
            left, right = (args[i] for i in kind.operands)
            terms = right[0].numel() if name == "convolution" else left.shape[-1]
            moved = _perturbed(left, share * SERIAL_SHARE * math.sqrt(terms))
            return self._run(func, [moved if a is left else a for a in args], kwargs)
        result = self._run(func, args, kwargs)
        if name in _SUMS:
            first = result[0] if isinstance(result, tuple) else result
            serial = share * SERIAL_SHARE * math.sqrt(args[0].numel() / max(first.numel(), 1))
            result = self._run(func, (_perturbed(args[0], serial), *args[1:]), kwargs)
            if name == "logsumexp" and self._extremes:
                result = _contracted(result, args[0], args[1], result.dim() == args[0].dim(), share)
            if name in ("var", "var_mean", "std") and self._extremes:
                result = _summed(result, args[0], args[1] if len(args) > 1 else kwargs.get("dim"))
            share = serial
        elif not kind.roundings:
            return result
        else:
            share *= kind.roundings
        for y in result if isinstance(result, tuple) else (result,):
            if y.is_floating_point() and not is_float8(y.dtype):
                y.addcmul_(_within_range(y), _noise(y), value=share)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        args, kind = list(args), _kind(func)
        if self._jumps and kind.jumps and self._jumps.takes(args):
            return self._jumps.run(func, args, kwargs)
        if self._tf32:
            for i in kind.operands:
                args[i] = cut_to_tf32(_dithered(args[i]) if self._dithered else args[i])
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


def _perturbed(x: Tensor, share: float) -> Tensor:
    """A floating tensor with a random relative error of RMS `share` on each element; float8 and other tensors as they are."""
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


@dataclass(slots=True)
class Answer:
    """The truth on one draw for every output, and eager's error."""

    truth: list[Tensor]
    levels: list[ErrorLevel]
    dtypes: list[torch.dtype]
    """Of eager's outputs under the policy."""
    statistics: tuple[str, ...] = ()
    """Names of the last outputs: the running statistics after the call, which a candidate may leave alone."""
    modelled: bool = True
    """Whether `levels` are those of all modelled runs, too. Without them tolerances are narrower."""

    @property
    def nbytes(self) -> int:
        """Bytes of the truth and of the error levels."""
        names = ("nonfinite", "nonfinite_truth", "nonfinite_eager", "weights", "slack")
        kept = [getattr(level, name) for level in self.levels for name in names]
        return sum(t.nbytes for t in (*self.truth, *kept) if t is not None)


class ReferenceAnswers:
    """A task's reference at one input set: float64 beside the policy's own dtype, on the same numbers."""

    def __init__(self, inputs: TaskInputs, clock: Clock | None = None, slices: Slices | None = None):
        """`clock` is told what answers take."""
        self.inputs, self._clock = inputs, clock or Clock()
        self.slices = None if _trains(inputs.module) else slices
        """How the float64 run is cut; None, from the first run on, where the module does not go with it."""
        self._wide = _Copy(inputs, torch.float64)
        self._models = COMPUTE_DTYPE[inputs.precision].itemsize == 4
        """Whether rounding is modelled on every draw; under 16-bit policies, `with_other_roundings` does it for some."""

    @functools.cached_property
    def _rounded(self) -> _Copy:
        """For modelled runs; made with the first one."""
        return _Copy(self.inputs, torch.float32)

    def make_copies(self) -> None:
        """Make now what the first modelled run would make."""
        _ = self._models and self._rounded

    def answer(self, kind: Inputs = Inputs.OWN, *, truth: list[Tensor] | None = None) -> Answer:
        """The answer for the numbers that the inputs hold now; `kind` says where they come from. `truth` is what `quick` has
        found for the same numbers.

        Eager's error counts as at least that of a second float32 run in which every input and parameter is off by two
        roundings, and every operation by one more than its own: where a task magnifies rounding (a variance of two numbers, a
        softmax of large ones), a single eager run says little about the error of an equally good program. Under tf32, that run
        also models TF32 operands in every product: libraries may decline TF32 at odd shapes, but a candidate may use it there.
        Elements within that rounding of an op's jump may lie on either side of it (`jumps`).
        """
        jumps = Jumps()  # where there are any, `quick` has called this
        return self._whole(kind, truth if truth is not None else self._exact_run(jumps.recording()), jumps)

    def quick(self, kind: Inputs) -> tuple[Answer, list[tuple[Tensor, Tensor | None]]]:
        """An answer whose levels are still to be made of the second result, by `plain_level`, and lack the modelled runs: those
        can only raise an error that most candidates' is far below. Without a sync.

        Where they may do something else, it is `answer`'s, and the second result is empty.
        """
        jumps, precision = Jumps(), self.inputs.precision
        truth = self._exact_run(jumps.recording())
        if jumps.operands or kind is Inputs.NONFINITE:
            return self._whole(kind, truth, jumps), []
        # in TF32, products of a good candidate are often further off than eager's
        rounded = [self.rounded_run(jumps, kind)] if precision == "tf32" else []
        eager = self._eager_run()
        with self._clock.at("levels"):
            figures = [
                level_figures(y, e, precision, modelled=[run[i] for run in rounded])
                for i, (y, e) in enumerate(zip(truth, eager, strict=True))
            ]
        modelled = not self._models and kind is Inputs.OWN
        return Answer(truth, [], [y.dtype for y in eager], tuple(self.inputs.statistics), modelled=modelled), figures

    def with_other_roundings(self, answer: Answer) -> list[ErrorLevel]:
        """The error levels of `answer`, of the numbers that the inputs hold now, where eager's errors may be small by luck.

        Inputs of a regime may magnify a rounding beyond what one run can show: a softmax of large numbers has a few shares,
        each off by the exponential of one number's rounding, and a norm of a nearly constant row gives that row's rounding.
        Eager may happen to be near, and says little about an equally good program. So its error counts as at least that of
        runs with the same roundings on other grids, within `MOST_LUCK`. Where nothing is magnified, they come to the same.
        """
        found = [[level.rms, level.max, level.relative_rms] for level in answer.levels]
        dtype = COMPUTE_DTYPE[self.inputs.precision]
        eager = self._eager_roundings(dtype)
        rounded = _Copy(self.inputs, torch.float32)  # seldom needed, and not kept
        for _ in range(OTHER_ROUNDINGS):
            with self._clock.at("rounded"), policy_flags("fp32"):
                mode = OtherRoundings(dtype, _rounds, eager)
                run = rounded.run_in_slices(self.slices, mode, lambda: True) if self.slices else None
                run = run or rounded.run(None, mode, wide=False)
            found = _larger(found, run, answer)
            del run  # before the next one is made
        return _raised(answer.levels, found, MOST_LUCK)

    def with_more_runs(self, answer: Answer, kind: Inputs) -> list[ErrorLevel]:
        """The error levels of `answer`, of the numbers that the inputs hold now, where all modelled runs may have been lucky.

        How many errors are independent, as `answer` counts them, is not seen in one run: in rows that are nearly equal, all
        elements of a column share one, that of an operand's rounding. So many more runs count, within `MOST_UNLUCKY`.
        """
        found = [[level.rms, level.max, level.relative_rms] for level in answer.levels]
        for _ in range(UNLUCKY_RUNS):
            run = self.rounded_run(None, kind, dithered=True)
            found = _larger(found, run, answer)
            del run  # before the next one is made
        return _raised(answer.levels, found, MOST_UNLUCKY)

    def _eager_roundings(self, dtype: torch.dtype) -> list[Rounded]:
        """What eager rounds to `dtype`; a run of it that leaves running statistics as they are."""
        buffers = [(buffer, buffer.clone()) for buffer in self.inputs.module.buffers()]
        mode = EagerRoundings(dtype, _rounds)
        with mode:
            self._eager_run()
        for buffer, before in buffers:
            buffer.copy_(before)
        return mode.noted

    def _whole(self, kind: Inputs, truth: list[Tensor], jumps: Jumps) -> Answer:
        precision = self.inputs.precision
        rounded = [self.rounded_run(jumps.measuring(), kind)] if self._models else []
        with self._clock.at("rounded"):
            more = range(_more_runs(truth, rounded))
        rounded += [self.rounded_run(jumps.measuring(), kind, dithered=True) for _ in more]
        if not self._models:
            jumps.relative(PERTURBATION_ROUNDOFFS * UNIT_ROUNDOFF[precision])
        sides = [self._exact_run(jumps.moved(side), "jumps") for side in (1.0, -1.0)] if jumps.near else []
        either = slack(truth, sides) if sides else [None] * len(truth)
        eager = self._eager_run()
        with self._clock.at("levels"):
            levels = [
                error_level(y, e, precision, modelled=[run[i] for run in rounded], inputs=kind, slack=either[i])
                for i, (y, e) in enumerate(zip(truth, eager, strict=True))
            ]
        return Answer(truth, levels, [y.dtype for y in eager], tuple(self.inputs.statistics))

    def _eager_run(self) -> list[Tensor]:
        with self._clock.at("eager"), torch.no_grad(), policy_flags(self.inputs.precision):
            return self.inputs.call() + [self.inputs.state[name].clone() for name in self.inputs.statistics]

    def _exact_run(self, jumps: Jumps, part: str = "truth") -> list[Tensor]:
        mode = Exact(jumps=jumps, narrow=narrow_dtypes(self.inputs.precision))
        with self._clock.at(part):
            if self.slices:
                truth = self._wide.run_in_slices(self.slices, mode, lambda: not jumps.operands)
                if truth is not None:
                    return truth
                self.slices = None
                jumps.forget()
                del self._wide  # what it holds may have changed
                self._wide = _Copy(self.inputs, torch.float64)
            return self._wide.run(None, mode)

    def rounded_run(self, jumps: Jumps | None, kind: Inputs, *, dithered: bool = False) -> list[Tensor]:
        """Outputs of a run with more rounding than eager's; `dithered`: with other roundings each time. On inputs that are not
        the task's own, very large numbers may have no answer."""
        u, tf32 = UNIT_ROUNDOFF["fp32"], self.inputs.precision == "tf32"
        # operands that are cut already are the same numbers to tensor cores, which are eight times as fast
        with self._clock.at("rounded"), policy_flags("tf32" if tf32 else "fp32"):
            mode = Exact(tf32=tf32, dithered=dithered, roundoff=u, jumps=jumps, extremes=kind is not Inputs.OWN)
            return self._rounded.run(lambda x: _perturbed(x, PERTURBATION_ROUNDOFFS * u), mode)


def _more_runs(truth: list[Tensor], rounded: list[list[Tensor]]) -> int:
    """How often outputs are modelled again: of a few errors, chance decides how large they are."""
    pairs = [(y, x) for run in rounded for y, x in zip(truth, run, strict=True) if y.numel() and y.is_floating_point()]
    if not pairs or sum(8 * y.numel() for y, _ in pairs) > RERUN_BYTES:
        return 0
    fewest = float(torch.stack([_independent_errors(widened(x) - widened(y)) for y, x in pairs]).amin())
    return min(MOST_RUNS, math.ceil(FEW_ERRORS / max(fewest, 1.0))) - 1


def _larger(found: list[list[float]], run: Sequence[Tensor], answer: Answer) -> list[list[float]]:
    """[RMS, max, relative RMS] by output: the larger of `found` and of a run of the same numbers, where it is finite."""
    larger = []
    for known, y, truth, level in zip(found, run, answer.truth, answer.levels, strict=True):
        figures = error_figures(y, truth, level).tolist()[:3]
        finite = all(map(math.isfinite, figures))
        larger.append([max(a, b) for a, b in zip(known, figures, strict=True)] if finite else known)
    return larger


def _raised(levels: Sequence[ErrorLevel], found: Sequence[Sequence[float]], most: float) -> list[ErrorLevel]:
    """Levels with the errors of other runs, [RMS, max, relative RMS] by output, where larger; at most so many times."""
    raised = []
    for level, (rms, largest, relative) in zip(levels, found, strict=True):
        within = {"rms": min(rms, most * level.rms), "max": min(largest, most * level.max)}
        raised.append(replace(level, **within, relative_rms=min(relative, most * level.relative_rms)))
    return raised


def _independent_errors(error: Tensor) -> Tensor:
    """About how many independent errors make up an error's RMS: 0-dim float64, without a sync.

    The elements that hold it (the participation ratio (Σe²)² / Σe⁴), times the share of rows that do: elements of a row may
    share one error, that of the row's softmax or variance, and then a few rows hold nearly all.
    """
    error = torch.where(torch.isfinite(error), error, 0.0).double()
    energy = (error / error.abs().amax().clamp_min(1e-300)).square()  # a square of 1e200 is infinite
    rows = energy.reshape(-1, energy.shape[-1] if energy.dim() else 1).sum(1)
    held, held_rows = (x.sum().square() / x.square().sum().clamp_min(1e-300) for x in (energy.reshape(-1), rows))
    return torch.where(energy.sum() > 0, held * held_rows / len(rows), float(energy.numel()))


def _trains(module: nn.Module) -> bool:
    """Whether a part updates statistics of its batches. torch does not say that its norms write to those."""
    return any(part.training and getattr(part, "running_mean", None) is not None for part in module.modules())


class _Copy:
    """The reference in another dtype, with its own parameters and buffers."""

    def __init__(self, inputs: TaskInputs, dtype: torch.dtype):
        self._inputs, self._dtype = inputs, dtype
        self._module = cast_module(copy.deepcopy(inputs.module), dtype)
        # copies also where the dtype is the same: this run must not move what eager runs on
        self._state = {k: v.to(dtype, copy=True) if v.is_floating_point() else v.clone() for k, v in inputs.state.items()}
        bind(self._module, self._state)
        self._held = HeldState(self._module, self._state)

    def run(self, change: Callable[[Tensor], Tensor] | None, mode: TorchDispatchMode, *, wide: bool = True) -> list[Tensor]:
        """Outputs on the inputs' current numbers, after `change`, if any, has been applied to each tensor; float64 if
        `wide`."""
        self._take_state(change)
        outputs = self._call([self._leaf(x, change) for x in flatten(self._inputs.arguments)], mode, wide=wide)
        return outputs + [self._state[name].clone() for name in self._inputs.statistics]

    def run_in_slices(self, slices: Slices, mode: TorchDispatchMode, goes_on: Callable[[], bool]) -> list[Tensor] | None:
        """The outputs of `run` without a change, made slice by slice.

        None where the module does not take a slice or keeps something for the next one, or `goes_on` says no after one.
        """
        self._take_state(None)
        leaves = flatten(self._inputs.arguments)
        watch, outputs = StateWatch(self._module), list[Tensor]()
        for start, length in slices:
            try:
                with watch:
                    made = self._call([self._leaf(x, None) for x in slices.cut(leaves, start, length)], mode)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a reference does when it is given fewer samples
                log.info("a float64 reference runs whole: %s", error)
                return None
            if watch.changed() or not goes_on() or not slices.put(made, outputs, start, length):
                return None
            del made
        return outputs + [self._state[name].clone() for name in self._inputs.statistics]

    def _take_state(self, change: Callable[[Tensor], Tensor] | None) -> None:
        for name, tensor in self._state.items():
            tensor.copy_(change(self._inputs.state[name]) if change else self._inputs.state[name])

    def _call(self, leaves: list[Any], mode: TorchDispatchMode, *, wide: bool = True) -> list[Tensor]:
        with torch.no_grad(), default_dtype(self._dtype, self._inputs.device), mode:
            found = flatten(self._module(*rebuild(self._inputs.arguments, leaves)))
        self._held.settle()
        return [widened(y) if wide else y for y in found if isinstance(y, Tensor)]

    def _leaf(self, x: Any, change: Callable[[Tensor], Tensor] | None) -> Any:
        if not isinstance(x, Tensor):
            return x
        return change(x) if change else x.to(self._dtype) if x.is_floating_point() else x
