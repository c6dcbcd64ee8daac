# task: cumsum_rows
# Block sums, their scan, then each block with its offset: three launches, as parallel scan libraries do it.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add(a, b):
    return a + b


@triton.jit
def block_sums(x, part, D, blocks, BLOCK: tl.constexpr):
    row, b = tl.program_id(0), tl.program_id(1)
    i = b * BLOCK + tl.arange(0, BLOCK)
    tl.store(part + row * blocks + b, tl.sum(tl.load(x + row * D + i, mask=i < D, other=0.0)))


@triton.jit
def scan_parts(part, start, total, blocks, BLOCKS: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCKS)
    v = tl.load(part + row * blocks + i, mask=i < blocks, other=0.0)
    s = tl.associative_scan(v, 0, add)
    tl.store(start + row * blocks + i + 1, s, mask=i + 1 < blocks)
    tl.store(start + row * blocks + i, 0.0, mask=i == 0)
    tl.store(total + row, tl.sum(v))


@triton.jit
def blocks_from(x, start, y, D, blocks, BLOCK: tl.constexpr):
    row, b = tl.program_id(0), tl.program_id(1)
    i = b * BLOCK + tl.arange(0, BLOCK)
    v = tl.associative_scan(tl.load(x + row * D + i, mask=i < D, other=0.0), 0, add)
    tl.store(y + row * D + i, v + tl.load(start + row * blocks + b), mask=i < D)


class ModelNew(nn.Module):
    def forward(self, x):
        T, D = x.shape
        BLOCK = 16 if D < 1024 else 1024
        n = triton.cdiv(D, BLOCK)
        part, start = x.new_empty(2, T, n).unbind(0)
        y, total = torch.empty_like(x), x.new_empty(T)
        block_sums[(T, n)](x, part, D, n, BLOCK=BLOCK)
        scan_parts[(T,)](part, start, total, n, BLOCKS=triton.next_power_of_2(n))
        blocks_from[(T, n)](x, start, y, D, n, BLOCK=BLOCK)
        return y, total
