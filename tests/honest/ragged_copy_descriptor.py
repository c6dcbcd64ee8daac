# task: ragged_copy
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scatter(x, order, y, B, S, D, BS: tl.constexpr, BD: tl.constexpr):
    b, s = tl.program_id(1), tl.program_id(0) * BS
    to = tl.load(order + b).to(tl.int32)
    src = tl.make_tensor_descriptor(x, shape=[B, S, D], strides=[S * D, D, 1], block_shape=[1, BS, BD])
    dst = tl.make_tensor_descriptor(y, shape=[B, S, D], strides=[S * D, D, 1], block_shape=[1, BS, BD])
    for d in range(0, D, BD):
        dst.store([to, s, d], src.load([b, s, d]) * 0.5)


@triton.jit
def plain(x, order, y, S, D, BLOCK: tl.constexpr):
    b, s = tl.program_id(1), tl.program_id(0)
    to = tl.load(order + b)
    d = tl.arange(0, BLOCK)
    tl.store(y + (to * S + s) * D + d, tl.load(x + (b * S + s) * D + d, mask=d < D) * 0.5, mask=d < D)


class ModelNew(nn.Module):
    def forward(self, x, order):
        B, S, D = x.shape
        y = torch.empty_like(x)
        if D % 4:
            plain[(S, B)](x, order, y, S, D, BLOCK=triton.next_power_of_2(D))
        else:
            triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device="cuda", dtype=torch.int8))
            scatter[(triton.cdiv(S, 8), B)](x, order, y, B, S, D, BS=8, BD=64)
        return y
