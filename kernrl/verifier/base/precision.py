"""Precision policies: what `fp32`, `tf32`, `bf16` and `fp16` mean for reference, baseline and candidate."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

COMPUTE_DTYPE = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Policy → dtype of floating inputs, parameters and outputs. `tf32` differs from `fp32` only in matrix products."""

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "tf32": 2.0**-24, "bf16": 2.0**-9, "fp16": 2.0**-12}
"""Policy → half the spacing of its output dtype at 1. TF32's operand rounding is modelled (`judge/truth/exact.py`)."""


def cast_dtype(dtype: torch.dtype, precision: str) -> torch.dtype:
    """The dtype that a reference's input has under a policy: floating dtypes become the policy's, float8 and others stay."""
    return COMPUTE_DTYPE[precision] if dtype.is_floating_point and not is_float8(dtype) else dtype


def cast_module(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """The module with its floating parameters and buffers cast; `module.to(dtype)` also drops imaginary parts."""
    kind = torch.nn.Module
    casts = {torch.float64: kind.double, torch.float32: kind.float, torch.bfloat16: kind.bfloat16, torch.float16: kind.half}
    return casts[dtype](module)


def is_float8(dtype: torch.dtype) -> bool:
    """Whether this is a floating dtype of one byte: numbers for storage, with which torch does not compute."""
    return dtype.is_floating_point and dtype.itemsize == 1


def widened(x: torch.Tensor) -> torch.Tensor:
    """A float8 tensor as float64; any other as it is."""
    return x.double() if is_float8(x.dtype) else x


def as_pairs(x: torch.Tensor) -> torch.Tensor:
    """A complex tensor as its real and imaginary parts [..., 2]; any other as it is."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


@contextmanager
def policy_flags(precision: str, *, autotune: bool = False) -> Iterator[None]:
    """torch's global precision switches for a policy, restored on leaving.

    With `autotune`, cuDNN times its algorithms once for each shape, for baseline and candidate alike; correctness runs
    leave it off.
    """
    matmul: Any = torch.backends.cuda.matmul
    cudnn: Any = torch.backends.cudnn
    reduced = ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction")
    before = (matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, *(getattr(matmul, name) for name in reduced))
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.benchmark = autotune
    for name in reduced:
        setattr(matmul, name, False)
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before[:3]
        for name, value in zip(reduced, before[3:], strict=True):
            setattr(matmul, name, value)
