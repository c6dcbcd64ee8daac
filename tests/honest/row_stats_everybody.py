# task: row_stats
# Every program of a row takes the row's statistics anew, stores them as its neighbours do, and normalises its own columns.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def normalise(x, y, std_ptr, N, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * N + i, mask=i < N, other=0.0)
    mean = tl.sum(v) / N
    d = tl.where(i < N, v - mean, 0.0)
    tl.store(std_ptr + row, tl.sqrt(tl.sum(d * d) / (N - 1)) + 1e-3)
    tl.debug_barrier()  # one warp stores, all of them load
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    own = tl.load(x + row * N + c, mask=c < N)
    tl.store(y + row * N + c, (own - mean) / tl.load(std_ptr + row), mask=c < N)


class ModelNew(nn.Module):
    def forward(self, x):
        M, N = x.shape
        y, std = torch.empty_like(x), torch.empty(M, 1, device=x.device, dtype=x.dtype)
        normalise[(M, triton.cdiv(N, 64))](x, y, std, N, BLOCK=triton.next_power_of_2(N), COLUMNS=64)
        return y, std
