# habit: A kernel is made by a function, and is passed another one to call.
# task: softplus_sign
import functools

import torch
import triton
import triton.language as tl


@triton.jit
def softplus_sign(x, y):
    s = x + y
    v = tl.where(s > 20.0, s, tl.log(1.0 + tl.exp(tl.minimum(s, 20.0))))
    small = tl.exp(tl.minimum(s, 20.0))
    v = tl.where(s < -8.0, small - 0.5 * small * small, v)
    return v * tl.where(y > 0, 1.0, tl.where(y < 0, -1.0, 0.0))


def binary_kernel(op):
    """A strided kernel of rank 3 for a scalar function of two numbers."""

    @triton.jit
    def kernel(x_ptr, y_ptr, o_ptr, n, s1, s2, x_strides, y_strides, OP: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        m = i < n
        a = i // (s1 * s2)
        b = i // s2 % s1
        c = i % s2
        x = tl.load(x_ptr + a * x_strides[0] + b * x_strides[1] + c * x_strides[2], mask=m)
        y = tl.load(y_ptr + a * y_strides[0] + b * y_strides[1] + c * y_strides[2], mask=m)
        tl.store(o_ptr + i, OP(x, y), mask=m)

    @functools.wraps(op.fn)
    def launch(x, y):
        shape = torch.broadcast_shapes(x.shape, y.shape)
        x, y = (torch.broadcast_to(t, shape) for t in (x, y))
        out = torch.empty(shape, dtype=torch.result_type(x, y), device=x.device)
        kernel[(triton.cdiv(out.numel(), 256),)](x, y, out, out.numel(), shape[1], shape[2], x.stride(), y.stride(), OP=op, BLOCK=256)
        return out

    return launch


softplus_times_sign = binary_kernel(softplus_sign)


class ModelNew(torch.nn.Module):
    def forward(self, x, y):
        return softplus_times_sign(x.transpose(0, 1), y)
