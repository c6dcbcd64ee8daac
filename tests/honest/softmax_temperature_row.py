# task: softmax_temperature
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_row(x_ptr, y_ptr, stride, N, temperature, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x_ptr + row * stride + i, mask=i < N, other=-float("inf")) / temperature
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y_ptr + row * stride + i, e / tl.sum(e, axis=0), mask=i < N)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        M, N = x.shape
        y = torch.empty_like(x)
        softmax_row[(M,)](x, y, x.stride(0), N, self.temperature, BLOCK=triton.next_power_of_2(N), num_warps=8)
        return y
