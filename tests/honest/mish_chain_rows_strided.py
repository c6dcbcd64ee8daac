# task: mish_chain
# A loop over the columns of one row, strides of both tensors passed, factors as constexprs of the module.
import torch
import torch.nn as nn
import triton
import triton.language as tl

LOW: tl.constexpr = tl.constexpr(-1.0)
HIGH: tl.constexpr = tl.constexpr(3.0)


@triton.jit
def softplus(v):
    return tl.where(v > 20.0, v, tl.log(1.0 + tl.exp(tl.minimum(v, 20.0))))


@triton.jit
def row_chain(src, dst, src_row, src_col, dst_row, dst_col, cols, scale, BLOCK: tl.constexpr):
    row = tl.program_id(axis=0)
    for first in tl.range(0, cols, BLOCK):
        c = first + tl.arange(0, BLOCK)
        keep = c < cols
        v = tl.load(src + row * src_row + c * src_col, mask=keep, other=0.0)
        t = v * scale
        out = t * (2.0 * tl.sigmoid(2.0 * softplus(t)) - 1.0) + v
        out = tl.where(out < LOW, LOW, tl.where(out > HIGH, HIGH, out))
        tl.store(dst + row * dst_row + c * dst_col, out, mask=keep)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = float(scale)

    def forward(self, x):
        if not x.is_contiguous():
            x = x.contiguous()
        out = torch.empty(x.size(), dtype=x.dtype, device=x.device)
        rows, cols = x.shape
        row_chain[(rows,)](x, out, *x.stride(), *out.stride(), cols, self.scale, BLOCK=64, num_warps=2)
        return out
