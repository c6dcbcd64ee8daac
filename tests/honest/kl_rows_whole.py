# task: kl_rows
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def log_softmax(v):
    v = v - tl.max(v, 0)
    return v - tl.log(tl.sum(tl.exp(v), 0))


@triton.jit
def kl_div(s, t, o, V, T, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    k = i < V
    p = log_softmax(tl.load(t + r * V + i, mask=k, other=-float("inf")) / T)
    q = log_softmax(tl.load(s + r * V + i, mask=k, other=-float("inf")) / T)
    tl.store(o + r, tl.sum(tl.where(k, tl.exp(p) * (p - q), 0.0), 0))


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, student, teacher):
        T, V = student.shape
        o = torch.empty((T,), device=student.device)
        kl_div[(T,)](student, teacher, o, V, self.temperature, BLOCK=triton.next_power_of_2(V))
        return o
