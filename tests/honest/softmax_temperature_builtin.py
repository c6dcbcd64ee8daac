# task: softmax_temperature
# tl.softmax on a tile of rows, persistent over the rows.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tile_softmax(x_ptr, y_ptr, M, N, inv_t, programs, R: tl.constexpr, C: tl.constexpr):
    cols = tl.arange(0, C)
    for r0 in range(tl.program_id(0) * R, M, programs * R):
        rows = r0 + tl.arange(0, R)
        offs = rows[:, None] * N + cols[None, :]
        mask = (rows[:, None] < M) & (cols[None, :] < N)
        v = tl.load(x_ptr + offs, mask=mask, other=float("-inf"))
        v = tl.where(rows[:, None] < M, v, 0.0) * inv_t
        p = tl.exp(v - tl.max(v, axis=1)[:, None])
        tl.store(y_ptr + offs, p / tl.sum(p, axis=1, keep_dims=True), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.inv_t = 1.0 / temperature

    def forward(self, x):
        y = torch.zeros_like(x)
        M, N = x.shape
        props = torch.cuda.get_device_properties(torch.cuda.current_device())
        programs = min(M, 2 * props.multi_processor_count)
        tile_softmax[(programs,)](x, y, M, N, self.inv_t, programs, R=2, C=triton.next_power_of_2(N))
        return y
