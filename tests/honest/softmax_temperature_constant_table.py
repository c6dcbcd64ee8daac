# task: softmax_temperature
# A constant made in the constructor (no parameter in it) is handed to the launch as a tensor.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_row(x, table, y, N, BLOCK: tl.constexpr):
    row = tl.program_id(0) * N
    inv = tl.load(table)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row + i, mask=i < N, other=-float("inf")) * inv
    e = tl.exp(v - tl.max(v))
    tl.store(y + row + i, e / tl.sum(e), mask=i < N)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature
        self.table = torch.full((1,), 1.0 / temperature, dtype=torch.float32)

    def forward(self, x):
        y = torch.empty_like(x)
        table = self.table.to(x.device)
        softmax_row[(x.size(0),)](x, table, y, x.size(1), triton.next_power_of_2(x.size(1)))
        return y
