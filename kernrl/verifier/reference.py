"""The right answer: the reference in float64, and how far eager PyTorch strays from it under the task's precision policy."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.verifier.compare import ErrorLevel, error_level
from kernrl.verifier.inputs import TaskInputs, bind, flatten, rebuild
from kernrl.verifier.precision import COMPUTE_DTYPE, UNIT_ROUNDOFF, policy_flags

STIR_ROUNDOFFS = 2.0
"""Roundings of each input that eager's error counts for at least."""

_UNFOLD_BYTES = 2 << 30
"""Largest unfolded block of a float64 convolution; the batch is cut to fit."""


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """torch's default dtype, so that a reference's own `torch.zeros(n)` is as wide as the rest."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def convolution(x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int) -> Tensor:
    """N-dimensional cross-correlation as one matrix product over unfolded windows.

    x [N, C, *spatial], w [O, C/groups, *kernel] → [N, O, *out]. On an H200, cuDNN's float64 convolutions run 10 to 170
    times slower than its float32 ones, while a float64 matrix product keeps pace with float32.
    """
    dims, kernel = x.dim() - 2, w.shape[2:]
    pad = [p for size in reversed(padding) for p in (size, size)]
    x = torch.nn.functional.pad(x, pad) if any(pad) else x.contiguous()
    out = [(x.shape[2 + i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in range(dims)]
    step = x.stride()[2:]
    windows = x.as_strided(
        (*x.shape[:2], *kernel, *out),
        (
            *x.stride()[:2],
            *(s * d for s, d in zip(step, dilation, strict=True)),
            *(s * t for s, t in zip(step, stride, strict=True)),
        ),
    )
    columns, places = w[0].numel(), 1
    for n in out:
        places *= n
    weight = w.reshape(groups, w.shape[0] // groups, columns)
    a_sample = x.shape[1] * (columns // w.shape[1]) * places * x.element_size()
    parts = [
        torch.matmul(weight, part.reshape(part.shape[0], groups, columns, places))
        for part in windows.split(max(1, _UNFOLD_BYTES // max(a_sample, 1)))
    ]
    return torch.cat(parts).reshape(x.shape[0], w.shape[0], *out)


def transposed_convolution(
    x: Tensor, w: Tensor, stride: list[int], padding: list[int], dilation: list[int], output_padding: list[int], groups: int
) -> Tensor:
    """The transpose of `convolution`: zeros between the inputs, then a plain one with the kernel mirrored.

    x [N, C, *spatial], w [C, O/groups, *kernel] → [N, O, *out].
    """
    dims, kernel = x.dim() - 2, w.shape[2:]
    full = [dilation[i] * (kernel[i] - 1) for i in range(dims)]
    spread = x.new_zeros(
        *x.shape[:2],
        *((x.shape[2 + i] - 1) * stride[i] + 1 + 2 * max(full[i] - padding[i], 0) + output_padding[i] for i in range(dims)),
    )
    inner = spread
    for i in range(dims):
        inner = inner.narrow(2 + i, max(full[i] - padding[i], 0), (x.shape[2 + i] - 1) * stride[i] + 1)
    inner[(slice(None), slice(None), *(slice(None, None, s) for s in stride))] = x
    for i in range(dims):  # a padding beyond the kernel's reach crops
        crop = max(padding[i] - full[i], 0)
        spread = spread.narrow(2 + i, crop, spread.shape[2 + i] - 2 * crop)
    mirrored = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).transpose(1, 2)
    mirrored = mirrored.reshape(groups * w.shape[1], w.shape[0] // groups, *kernel).flip(tuple(range(2, 2 + dims)))
    return convolution(spread.contiguous(), mirrored, [1] * dims, [0] * dims, dilation, groups)


def cut_to_tf32(x: Tensor) -> Tensor:
    """float64 cut to TF32's 11 significant bits: tensor cores ignore the rest of an operand that nobody rounded."""
    mantissa, exponent = torch.frexp(x)
    return torch.ldexp(torch.trunc(mantissa * 2048.0) / 2048.0, exponent)


class Exact(TorchDispatchMode):
    """Runs float64 convolutions as matrix products; with `tf32`, cuts what goes into any product as tensor cores do."""

    _OPERANDS: ClassVar = {
        **dict.fromkeys(("mm", "bmm", "mv", "dot"), (0, 1)),
        **dict.fromkeys(("addmm", "baddbmm", "addmv"), (1, 2)),
    }

    def __init__(self, *, tf32: bool = False):
        super().__init__()
        self._tf32 = tf32

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, name = list(args), func.overloadpacket.__name__
        if self._tf32:
            for i in self._OPERANDS.get(name, (0, 1) if name == "convolution" else ()):
                args[i] = cut_to_tf32(args[i])
        if name != "convolution" or args[0].dtype != torch.float64 or args[0].dim() != args[1].dim():
            return func(*args, **(kwargs or {}))
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


def _stirred(x: Tensor, share: float) -> Tensor:
    """float64 of a floating tensor, each element off by `share` times a standard normal; other tensors as they are."""
    if not x.is_floating_point():
        return x
    wide = x.double()
    return wide * (1.0 + share * torch.randn_like(wide)) if share else wide


@dataclass(slots=True)
class Answer:
    """What is right on one draw, for every output, and how far eager is from it."""

    truth: list[Tensor]
    levels: list[ErrorLevel]
    dtypes: list[torch.dtype]
    """What eager returns under the policy."""


class Reference:
    """A task's reference at one input set: float64 beside the policy's own dtype, on the same numbers."""

    def __init__(self, inputs: TaskInputs):
        self.inputs = inputs
        self._wide = copy.deepcopy(inputs.module).double()
        self._wide_state = {k: v.double() if v.is_floating_point() else v.clone() for k, v in inputs.state.items()}
        bind(self._wide, self._wide_state)

    def _run_wide(self, *, tf32: bool = False, stir: float = 0.0) -> list[Tensor]:
        """Outputs in float64; with `stir`, of inputs and state that are each off by that share, at random."""
        for name, tensor in self._wide_state.items():
            tensor.copy_(_stirred(self.inputs.state[name], stir))
        leaves = [_stirred(leaf, stir) if isinstance(leaf, Tensor) else leaf for leaf in flatten(self.inputs.arguments)]
        with torch.no_grad(), default_dtype(torch.float64), Exact(tf32=tf32):
            return [y for y in flatten(self._wide(*rebuild(self.inputs.arguments, leaves))) if isinstance(y, Tensor)]

    def answer(self) -> Answer:
        """The answer on the numbers the inputs hold now.

        Eager's error counts as at least what two roundings of every input and parameter make of the output: where a task
        magnifies rounding (a variance of two numbers), one eager run says little of what an equally good one may show.
        Under tf32, TF32 operands are modelled in every product besides: libraries may decline TF32 at odd shapes, and a
        candidate that takes it there is no worse than its policy.
        """
        truth = self._run_wide()
        if COMPUTE_DTYPE[self.inputs.precision].itemsize == 4:
            tf32 = self.inputs.precision == "tf32"
            outputs = list(zip(truth, self._run_wide(tf32=tf32, stir=STIR_ROUNDOFFS * UNIT_ROUNDOFF["fp32"]), strict=True))
        else:
            outputs = [(y, None) for y in truth]
        with torch.no_grad(), policy_flags(self.inputs.precision):
            eager = [y for y in flatten(self.inputs.module(*self.inputs.arguments)) if isinstance(y, Tensor)]
        levels = [error_level(y, e, self.inputs.precision, modelled=m) for (y, m), e in zip(outputs, eager, strict=True)]
        return Answer(truth, levels, [y.dtype for y in eager])
