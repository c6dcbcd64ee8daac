# habit: A launcher function that calls kernel.run; block sizes as global constexprs.
# task: matmul_bias_relu
from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK_SIZE_0 = tl.constexpr(32)
_BLOCK_SIZE_1 = tl.constexpr(32)
_BLOCK_SIZE_2 = tl.constexpr(16)


def _default_launcher(triton_kernel, grid, *args, num_warps, num_stages, launch_cooperative_grid=False, **kwargs):
    if len(args) == 0:
        return None
    return triton_kernel.run(*args, grid=grid, warmup=False, num_warps=num_warps, num_stages=num_stages, **kwargs)


@triton.jit
def epilogue(acc, idx, bias):
    load = tl.load(bias + tl.zeros([1, 1], tl.int32) + idx[None, :], None) if False else tl.load(bias + idx)
    return tl.where(acc + load[None, :] > 0, acc + load[None, :], tl.full([], 0, tl.float32))


@triton.jit
def _helion_matmul(x, w, bias, out, m, k, n, out_stride_0, out_stride_1, x_stride_0, x_stride_1, w_stride_0, w_stride_1):
    num_blocks_0 = tl.cdiv(m, _BLOCK_SIZE_0)
    pid_0 = tl.program_id(0) % num_blocks_0
    pid_1 = tl.program_id(0) // num_blocks_0
    offset_0 = pid_0 * _BLOCK_SIZE_0
    indices_0 = (offset_0 + tl.arange(0, _BLOCK_SIZE_0)).to(tl.int32)
    mask_0 = indices_0 < m
    offset_1 = pid_1 * _BLOCK_SIZE_1
    indices_1 = (offset_1 + tl.arange(0, _BLOCK_SIZE_1)).to(tl.int32)
    mask_1 = indices_1 < n
    acc = tl.full([_BLOCK_SIZE_0, _BLOCK_SIZE_1], 0.0, tl.float32)
    for offset_2 in tl.range(0, k.to(tl.int32), _BLOCK_SIZE_2, loop_unroll_factor=1, num_stages=2, disallow_acc_multi_buffer=False, flatten=True):
        indices_2 = offset_2 + tl.arange(0, _BLOCK_SIZE_2).to(tl.int32)
        mask_2 = indices_2 < k
        acc_copy = acc
        acc_copy_0 = acc_copy
        load = tl.load(x + (indices_0[:, None] * x_stride_0 + indices_2[None, :] * x_stride_1), mask_0[:, None] & mask_2[None, :], other=0)
        load_1 = tl.load(w + (indices_2[:, None] * w_stride_0 + indices_1[None, :] * w_stride_1), mask_2[:, None] & mask_1[None, :], other=0, eviction_policy="evict_first")
        acc = tl.dot(load, load_1, acc=acc_copy_0, input_precision="ieee", out_dtype=tl.float32)
    b = tl.load(bias + indices_1 * 1, mask_1, other=0)
    v = acc + b[None, :]
    v_0 = tl.full([], 0, tl.float32)
    v_1 = triton_maximum(v, v_0)
    tl.store(out + (indices_0[:, None] * out_stride_0 + indices_1[None, :] * out_stride_1), v_1, mask_0[:, None] & mask_1[None, :])


@triton.jit
def triton_maximum(a, b):
    mask = a > b
    mask |= a != a
    return tl.where(mask, a, b)


def matmul(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, *, _launcher=_default_launcher):
    m, k = x.size()
    k2, n = w.size()
    assert k == k2, f"size mismatch {k} != {k2}"
    out = torch.empty([m, n], dtype=torch.promote_types(x.dtype, w.dtype), device=x.device)
    _launcher(
        _helion_matmul, (triton.cdiv(m, 32) * triton.cdiv(n, 32),), x, w, bias, out, m, k, n, out.stride(0), out.stride(1),
        x.stride(0), x.stride(1), w.stride(0), w.stride(1), num_warps=4, num_stages=3,
    )
    return out


class ModelNew(torch.nn.Module):
    def __init__(self, K, N):
        super().__init__()
        self.w = torch.nn.Parameter(torch.randn(K, N) * 0.05)

    def forward(self, x, bias):
        return matmul(x, self.w, bias)
