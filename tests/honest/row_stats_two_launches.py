# task: row_stats
# One kernel launched in two modes, chosen by a constexpr; rows in a loop; the second output is a view of a wider workspace.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def step(x, y, work, M, N, MODE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)
    mask = (r < M)[:, None] & (c < N)[None, :]
    v = tl.load(x + r[:, None] * N + c[None, :], mask=mask, other=0.0)
    if MODE == 0:
        mean = tl.sum(v, axis=1) / N
        d = tl.where(mask, v - mean[:, None], 0.0)
        tl.store(work + r, tl.sqrt(tl.sum(d * d, axis=1) / (N - 1)) + 1e-3, mask=r < M)
        tl.store(work + M + r, mean, mask=r < M)
    else:
        std = tl.load(work + r, mask=r < M, other=1.0)
        mean = tl.load(work + M + r, mask=r < M, other=0.0)
        tl.store(y + r[:, None] * N + c[None, :], (v - mean[:, None]) / std[:, None], mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        M, N = x.shape
        work = torch.empty(2 * M, device=x.device, dtype=x.dtype)
        y = torch.empty_like(x)
        for mode in (0, 1):
            step[(triton.cdiv(M, 4),)](x, y, work, M, N, MODE=mode, ROWS=4, BLOCK=triton.next_power_of_2(N))
        return y, work[:M].view(M, 1)
