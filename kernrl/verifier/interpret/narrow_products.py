"""Products of float32 through the narrower numbers that tensor cores multiply."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernrl.verifier.plan.ttir import TtirError


def tf32(a: Tensor) -> Tensor:
    """Round float32 to TF32's ten bits, halves away from zero, as the tensor cores' conversion does."""
    bits = a.contiguous().view(torch.int32)
    rounded = ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(torch.isfinite(a), rounded, a)


def _bfloat16(a: Tensor) -> Tensor:
    return a.bfloat16().float()


_PARTS = {"tf32": (tf32, 1, 0), "tf32x3": (tf32, 2, 1), "bf16x3": (_bfloat16, 2, 1), "bf16x6": (_bfloat16, 3, 2)}
"""How tensor cores multiply float32: the rounding of an operand's parts, how many parts it has, and the largest sum of part
numbers whose products are added (Triton's F32DotTC pass)."""


def emulated(a: Tensor, b: Tensor, precision: str) -> Tensor:
    """A float32 product through narrower parts, the smallest contributions first. Raises TtirError."""
    if precision not in _PARTS:
        raise TtirError(f"a product in {precision}")
    rounded, count, reach = _PARTS[precision]
    left, right = _parts(a, rounded, count), _parts(b, rounded, count)
    pairs = sorted(((i, j) for i in range(count) for j in range(count) if i + j <= reach), key=lambda p: -sum(p))
    low = sum((torch.matmul(left[i], right[j]) for i, j in pairs[:-1]), torch.zeros(()))
    # where an operand is infinite its rest is NaN, and the pass keeps the whole product alone
    return torch.matmul(left[0], right[0]) + torch.nan_to_num(low, 0.0, 0.0, 0.0)


def _parts(a: Tensor, rounded: Callable[[Tensor], Tensor], count: int) -> list[Tensor]:
    parts: list[Tensor] = []
    for _ in range(count):
        parts.append(rounded(a))
        a = a - parts[-1]
    return parts
