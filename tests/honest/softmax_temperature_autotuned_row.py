# task: softmax_temperature
# Autotuned over warps alone, pruned configurations, a keyword-only launch, heuristics under the autotuner.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.autotune([triton.Config({}, num_warps=w) for w in (2, 4, 8)], key=["N"])
@triton.heuristics({"BLOCK": lambda args: triton.next_power_of_2(args["N"])})
@triton.jit
def softmax_kernel(x_ptr, y_ptr, N, T, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    v = tl.load(x_ptr + row * N + cols, mask=cols < N, other=-float("inf")) / T
    v = v - tl.max(v, axis=0)
    num = tl.exp(v)
    tl.store(y_ptr + row * N + cols, num / tl.sum(num, axis=0), mask=cols < N)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        M, N = x.shape
        y = torch.empty_like(x)
        softmax_kernel[(M,)](x_ptr=x, y_ptr=y, N=N, T=self.temperature)
        return y
