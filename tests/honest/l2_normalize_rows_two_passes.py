# task: l2_normalize_rows
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def lengths(x, length, D, EPS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in range(0, D, BLOCK):
        d = i + tl.arange(0, BLOCK)
        v = tl.load(x + row * D + d, mask=d < D, other=0.0, eviction_policy="evict_last")
        acc += v * v
    tl.store(length + row, tl.maximum(tl.sqrt(tl.sum(acc)), EPS))


@triton.jit
def divide(x, length, y, n, D, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n) / tl.load(length + i // D, mask=i < n, other=1.0)
    tl.store(y + i, v, mask=i < n, cache_modifier=".cs")


class ModelNew(nn.Module):
    def forward(self, x):
        T, D = x.shape
        length, y = x.new_empty(T), torch.empty_like(x)
        lengths[(T,)](x, length, D, EPS=1e-6, BLOCK=16)
        divide[(triton.cdiv(T * D, 64),)](x, length, y, T * D, D, BLOCK=64)
        return y, length
