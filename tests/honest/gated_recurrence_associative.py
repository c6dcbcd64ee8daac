# task: gated_recurrence
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def combine(a_left, b_left, a_right, b_right):
    return a_left * a_right, a_right * b_left + b_right


@triton.jit
def scan(a_ptr, b_ptr, h_ptr, L, D, BL: tl.constexpr):
    d, batch = tl.program_id(0), tl.program_id(1)
    t = tl.arange(0, BL)
    at = (batch * L + t) * D + d
    gate = tl.sigmoid(tl.load(a_ptr + at, mask=t < L, other=0.0))
    value = tl.load(b_ptr + at, mask=t < L, other=0.0)
    _, h = tl.associative_scan((gate, value), axis=0, combine_fn=combine)
    tl.store(h_ptr + at, h, mask=t < L)


class ModelNew(nn.Module):
    def forward(self, a, b):
        B, L, D = a.shape
        h = torch.empty_like(b)
        scan[(D, B)](a, b, h, L, D, BL=triton.next_power_of_2(L))
        return h
