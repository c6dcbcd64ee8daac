"""The one step that is left to a backward pass whose gradient was made in the forward one."""

# Triton's language is not Python's: pyright cannot follow it.
# pyright: reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false, reportAttributeAccessIssue=false
# pyright: reportPossiblyUnboundVariable=false, reportOperatorIssue=false, reportIndexIssue=false

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernrl.kernels.launch import Launch, Variant, multiprocessors

BLOCK = 8192


@triton.jit
def _scale_kernel(x_ptr, factor_ptr, n, BLOCK: tl.constexpr):
    """x *= factor, at no cost where factor is 1: it is read on the GPU, so that nobody waits to know it."""
    factor = tl.load(factor_ptr).to(tl.float32)
    if factor != 1.0:
        for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, tl.num_programs(0) * BLOCK):
            at = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
            tl.store(x_ptr + at, (x * factor).to(x_ptr.dtype.element_ty), mask=at < n)


_scale = Variant(_scale_kernel, {"BLOCK": BLOCK}, num_warps=8)


def scale_(x: Tensor, factor: Tensor) -> Tensor:
    """`x` (contiguous, on a GPU) times the scalar tensor `factor`, in place."""
    scaling(x.numel(), x.device, x.dtype, factor.dtype)(x, factor)
    return x


@lru_cache(maxsize=256)
def scaling(n: int, device: torch.device, _dtype: torch.dtype, _factor_dtype: torch.dtype = torch.float32) -> Launch:
    """The launch that is `scale_` for N elements of a dtype."""
    return Launch(_scale, max(1, min(4 * multiprocessors(device), -(-n // BLOCK))), (n,))
