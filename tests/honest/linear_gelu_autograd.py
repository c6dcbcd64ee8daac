# task: linear_gelu
import torch
import torch.nn as nn
import triton
import triton.language as tl

SQRT_HALF = tl.constexpr(0.7071067811865476)


@triton.jit
def _bias_gelu_fwd(z_ptr, b_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, n_cols, BLOCK):
        col = start + tl.arange(0, BLOCK)
        keep = col < n_cols
        z = tl.load(z_ptr + row * n_cols + col, mask=keep, other=0.0) + tl.load(b_ptr + col, mask=keep, other=0.0)
        tl.store(y_ptr + row * n_cols + col, 0.5 * z * (1.0 + tl.erf(z * SQRT_HALF)), mask=keep)


class BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, bias):
        y = torch.empty_like(z)
        n_rows, n_cols = z.shape
        _bias_gelu_fwd[(n_rows,)](z, bias, y, n_cols, BLOCK=triton.next_power_of_2(min(n_cols, 1024)))
        ctx.save_for_backward(z, bias)
        return y

    @staticmethod
    def backward(ctx, dy):
        raise NotImplementedError


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return BiasGelu.apply(x @ self.linear.weight.T, self.linear.bias)
