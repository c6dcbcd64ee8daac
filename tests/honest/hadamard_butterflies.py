# habit: Static steps of reshape, permute, split and join.
# task: hadamard
import math

import torch
import triton
import triton.language as tl


@triton.jit
def _butterfly(x, N: tl.constexpr, STEP: tl.constexpr):
    x = tl.reshape(x, (N // (2 * STEP), 2, STEP))
    x = tl.permute(x, (0, 2, 1))
    a, b = tl.split(x)
    x = tl.join(a + b, a - b)
    x = tl.permute(x, (0, 2, 1))
    return tl.reshape(x, (N,))


@triton.jit
def hadamard_kernel(x_ptr, y_ptr, stride_x, stride_y, scale, N: tl.constexpr, LOG_N: tl.constexpr):
    tl.static_assert(2**LOG_N == N, "the width must be a power of two")
    row = tl.program_id(0)
    cols = tl.arange(0, N)
    x = tl.load(x_ptr + row * stride_x + cols)
    for i in tl.static_range(LOG_N):
        x = _butterfly(x, N, 2**i)
    tl.store(y_ptr + row * stride_y + cols, x * scale)


class HadamardTransformFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale=1.0):
        ctx._hadamard_transform_scale = scale
        shape = x.size()
        dim = x.shape[-1]
        log_dim = math.ceil(math.log2(dim))
        if dim != 2**log_dim:
            raise ValueError(f"{dim = } is no power of two")
        x = x.reshape(-1, dim)
        if x.stride(-1) != 1:
            x = x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        hadamard_kernel[(x.shape[0],)](x, out, x.stride(0), out.stride(0), scale, N=dim, LOG_N=log_dim)
        return out.reshape(*shape)


def hadamard_transform(x, scale=1.0):
    return HadamardTransformFn.apply(x, scale)


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width

    def forward(self, x):
        return hadamard_transform(x, scale=self.width**-0.5)
