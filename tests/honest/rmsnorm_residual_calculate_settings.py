# task: rmsnorm_residual
# A settings helper chooses block and warps, and an autograd function launches.
import torch
import torch.nn as nn
import triton
import triton.language as tl

MAX_FUSED_SIZE = 65536


def calculate_settings(n):
    block = triton.next_power_of_2(n)
    if block > MAX_FUSED_SIZE:
        raise RuntimeError(f"{n} columns are more than {MAX_FUSED_SIZE}")
    warps = 4
    if block >= 32768:
        warps = 32
    elif block >= 8192:
        warps = 16
    elif block >= 2048:
        warps = 8
    return block, warps


@triton.jit
def _add_rms_norm_fwd(Y, y_stride, S, s_stride, X, x_stride, R, r_stride, W, n_cols, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    Y += row * y_stride
    S += row * s_stride
    X += row * x_stride
    R += row * r_stride
    offsets = tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_cols
    s = tl.load(X + offsets, mask=mask, other=0).to(tl.float32) + tl.load(R + offsets, mask=mask, other=0).to(tl.float32)
    tl.store(S + offsets, s, mask=mask)
    rstd = tl.rsqrt(tl.sum(s * s, axis=0) / n_cols + eps)
    w = tl.load(W + offsets, mask=mask, other=0)
    tl.store(Y + offsets, s * rstd * w, mask=mask)


class AddRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        shape = x.shape
        x, residual = x.view(-1, shape[-1]), residual.view(-1, shape[-1])
        rows, cols = x.shape
        block, warps = calculate_settings(cols)
        y, s = torch.empty_like(x), torch.empty_like(x)
        _add_rms_norm_fwd[(rows,)](
            y, y.stride(0), s, s.stride(0), x, x.stride(0), residual, residual.stride(0), weight, cols, eps,
            BLOCK_SIZE=block, num_warps=warps,
        )
        ctx.eps = eps
        ctx.save_for_backward(s, weight)
        return y.view(*shape), s.view(*shape)

    @staticmethod
    def backward(ctx, dy, ds):
        raise NotImplementedError


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.variance_epsilon = eps

    def forward(self, x, residual):
        return AddRMSNorm.apply(x, residual, self.weight, self.variance_epsilon)
