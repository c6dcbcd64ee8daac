# task: smooth_cross_entropy
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def ce_kernel(logits, target, out, N, C, smoothing, inv_n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0) * ROWS
    loss = 0.0
    for row in tl.range(first, min(first + ROWS, N)):
        base = logits + row * C
        m_i = -float("inf")
        s_i = 0.0
        total = 0.0
        for start in tl.range(0, C, BLOCK):
            c = start + tl.arange(0, BLOCK)
            x = tl.load(base + c, mask=c < C, other=-float("inf"))
            m_new = tl.maximum(m_i, tl.max(x, axis=0))
            s_i = s_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - m_new), axis=0)
            total += tl.sum(tl.where(c < C, x, 0.0), axis=0)
            m_i = m_new
        lse = m_i + tl.log(s_i)
        label = tl.load(target + row).to(tl.int32)
        picked = tl.load(base + label)
        loss += (1.0 - smoothing) * (lse - picked) + smoothing * (lse - total / C)
    tl.atomic_add(out, loss * inv_n, sem="relaxed")


class ModelNew(nn.Module):
    def __init__(self, smoothing: float = 0.0):
        super().__init__()
        self.register_buffer("_dummy", torch.empty(0), persistent=False)
        self.smoothing = float(smoothing)

    def forward(self, logits, target):
        N, C = logits.shape[0], logits.shape[1]
        out = torch.zeros((), device=logits.device, dtype=logits.dtype)
        grid = (triton.cdiv(N, 64),)  # thousands of sums one after another would lose a digit: 64 rows a program
        block = min(1024, triton.next_power_of_2(C))
        ce_kernel[grid](logits, target, out, N, C, self.smoothing, 1.0 / N, ROWS=64, BLOCK=block)
        return out
