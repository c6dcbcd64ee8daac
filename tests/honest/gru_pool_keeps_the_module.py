# task: gru_pool
# The recurrence stays with the library. With gradients on, autograd copies what a cell changes in place.
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def largest_step(y_ptr, out_ptr, T, D, BLOCK: tl.constexpr):
    b = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    for t in range(T):
        best = tl.maximum(best, tl.load(y_ptr + (b * T + t) * D + d, mask=d < D, other=0.0))
    tl.store(out_ptr + b * D + d, best, mask=d < D)


class ModelNew(nn.Module):
    def __init__(self, wide, hidden):
        super().__init__()
        self.rnn = nn.GRU(wide, hidden, batch_first=True)

    def forward(self, x):
        y = self.rnn(x)[0].contiguous()
        rows, steps, wide = y.shape
        out = y.new_empty(rows, wide)
        largest_step[(rows, triton.cdiv(wide, 16))](y, out, steps, wide, BLOCK=16)
        return out
