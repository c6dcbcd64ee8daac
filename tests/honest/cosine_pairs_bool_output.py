# habit: Named results, one of which is bool; a loop with hints.
# task: cosine_pairs
from typing import NamedTuple

import torch
import torch.nn as nn
import triton
import triton.language as tl


class Similarity(NamedTuple):
    score: torch.Tensor
    alike: torch.Tensor


@triton.jit
def cosine_kernel(a_ptr, b_ptr, s_ptr, alike_ptr, D, threshold, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    dot = 0.0
    aa = 0.0
    bb = 0.0
    for k in tl.range(0, D, BLOCK, num_stages=2, loop_unroll_factor=2):
        offs = k + tl.arange(0, BLOCK)
        a = tl.load(a_ptr + row * D + offs, mask=offs < D, other=0.0)
        b = tl.load(b_ptr + row * D + offs, mask=offs < D, other=0.0)
        dot += tl.sum(a * b)
        aa += tl.sum(a * a)
        bb += tl.sum(b * b)
    s = dot / (tl.maximum(tl.sqrt(aa), 1e-8) * tl.maximum(tl.sqrt(bb), 1e-8))
    tl.store(s_ptr + row, s)
    tl.store(alike_ptr + row, s > threshold)


def cosine(a, b, threshold) -> Similarity:
    rows, dim = a.shape
    result = Similarity(torch.empty(rows, device=a.device), torch.empty(rows, device=a.device, dtype=torch.bool))
    cosine_kernel[(rows,)](a, b, *result, dim, threshold, BLOCK=256)
    return result


class ModelNew(nn.Module):
    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, a, b):
        return tuple(cosine(a, b, self.threshold))
