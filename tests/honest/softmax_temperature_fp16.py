# task: softmax_temperature
# precision: fp16
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_row(x_ptr, y_ptr, N, temperature, BLOCK: tl.constexpr):
    row = tl.program_id(0) * N
    i = tl.arange(0, BLOCK)
    v = tl.load(x_ptr + row + i, mask=i < N, other=-float("inf")).to(tl.float32) / temperature
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y_ptr + row + i, (e / tl.sum(e, axis=0)).to(y_ptr.dtype.element_ty), mask=i < N)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        y = torch.empty_like(x)
        softmax_row[(x.shape[0],)](x, y, x.shape[1], self.temperature, BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
