# task: bmm_softmax
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scaled_softmax_(s_ptr, n_cols, scale, BLOCK: tl.constexpr):
    row = s_ptr + tl.program_id(0).to(tl.int64) * n_cols
    c = tl.arange(0, BLOCK)
    v = tl.load(row + c, mask=c < n_cols, other=-float("inf")) * scale
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(row + c, e / tl.sum(e, axis=0), mask=c < n_cols)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, q, k):
        s = q @ k.mT
        rows = s.shape[0] * s.shape[1]
        scaled_softmax_[rows,](s, s.shape[-1], self.scale, BLOCK=triton.next_power_of_2(s.shape[-1]))
        return s
