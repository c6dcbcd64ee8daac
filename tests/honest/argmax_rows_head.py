# task: argmax_rows
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def row_argmax(x, b, ix, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    a = tl.load(x + row * N + i, mask=i < N, other=float("-inf")) + tl.load(b + i, mask=i < N, other=0.0)
    tl.store(ix + row, tl.argmax(a, axis=0))


class ModelNew(nn.Module):
    def __init__(self, in_features, classes):
        super().__init__()
        self.head = nn.Linear(in_features, classes)

    def forward(self, x):
        y = x @ self.head.weight.t()
        out = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
        row_argmax[(x.shape[0],)](y, self.head.bias, out, y.shape[1], BLOCK=triton.next_power_of_2(y.shape[1]))
        return out
