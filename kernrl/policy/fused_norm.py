"""RMSNorm in one kernel, for a copy of a model that only samples.

transformers computes it in eight kernels: 104 of some 265 that a decoding step of nano starts, nearly all of them so short
that starting them is what takes time.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernrl.kernels.launch import Variant


@triton.jit
def _norm_kernel(x_ptr, weight_ptr, out_ptr, size, epsilon, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * size
    at = tl.arange(0, BLOCK)
    inside = at < size
    x = tl.load(x_ptr + start + at, mask=inside, other=0.0).to(tl.float32)
    scaled = x * tl.rsqrt(tl.sum(x * x, axis=0) / size + epsilon)
    scaled = scaled.to(out_ptr.dtype.element_ty).to(tl.float32)  # rounded where transformers rounds
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + start + at, (weight * scaled).to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x / sqrt(mean(x², last axis) + epsilon) * weight, computed in float32. x: [..., N]; weight: [N], in x's dtype."""
    x = x.contiguous()
    out = torch.empty_like(x)
    size = x.shape[-1]
    _variant(size)(x.numel() // size, (x, weight, out), (size,), (epsilon,))
    return out


def fuse_norms(model: Any) -> None:
    """Let the norms of a model on a GPU that will have no gradients be computed in one kernel each, where that is the same."""
    epsilon: Any
    for module in model.modules():
        weight, epsilon = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
        named = type(module).__name__.endswith("RMSNorm") and isinstance(epsilon, float)
        if named and isinstance(weight, Tensor) and weight.is_cuda:
            module.forward = functools.partial(rms_norm, weight=weight, epsilon=epsilon)


@functools.cache
def _variant(size: int) -> Variant:
    return Variant(_norm_kernel, {"BLOCK": triton.next_power_of_2(size)}, num_warps=4 if size <= 2048 else 8)
