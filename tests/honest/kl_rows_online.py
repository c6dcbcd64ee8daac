# task: kl_rows
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def log_sum_exp(ptr, V, inv_t, BLOCK: tl.constexpr):
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(ptr + i, mask=i < V, other=float("-inf")) * inv_t
        new = tl.maximum(top, v)
        shift = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(top - shift) + tl.exp(v - shift)
        top = new
    m = tl.max(top, 0)
    return m, tl.log(tl.sum(total * tl.exp(top - m), 0))  # apart: their sum would round


@triton.jit
def kl(student, teacher, out, V, inv_t, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    student += row * V
    teacher += row * V
    ms, ls = log_sum_exp(student, V, inv_t, BLOCK)
    mt, lt = log_sum_exp(teacher, V, inv_t, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, V, BLOCK):
        i = start + tl.arange(0, BLOCK)
        p = tl.load(teacher + i, mask=i < V, other=0.0) * inv_t - mt - lt
        q = tl.load(student + i, mask=i < V, other=0.0) * inv_t - ms - ls
        acc += tl.where(i < V, tl.exp(p) * (p - q), 0.0)
    tl.store(out + row, tl.sum(acc, 0))


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.inv_t = 1.0 / temperature

    def forward(self, student, teacher):
        out = torch.empty(student.shape[0], dtype=torch.float32, device=student.device)
        kl[(student.shape[0],)](student, teacher, out, student.shape[1], self.inv_t, BLOCK=8)
        return out
