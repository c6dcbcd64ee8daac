# task: huber_mean
# One program a share; the last trip of the loop stores the share's sum.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def shares(p, t, part, n, delta, PER: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for s in range(PER):
        i = (pid * PER + s) * BLOCK + tl.arange(0, BLOCK)
        d = tl.abs(tl.load(p + i, mask=i < n, other=0.0) - tl.load(t + i, mask=i < n, other=0.0))
        acc += tl.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))
        if s == PER - 1:
            tl.store(part + pid, tl.sum(acc, axis=0))


@triton.jit
def finish(part, out, count, n, BLOCK: tl.constexpr):
    total = 0.0
    for start in range(0, count, BLOCK):
        k = start + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(part + k, mask=k < count, other=0.0), axis=0)
        if start + BLOCK >= count:
            tl.store(out, total / n)


class ModelNew(nn.Module):
    def __init__(self, delta):
        super().__init__()
        self.delta = delta

    def forward(self, prediction, target):
        n = prediction.numel()
        g = triton.cdiv(n, 8 * 256)
        part = torch.empty(g, device=prediction.device)
        out = torch.empty([], device=prediction.device)
        shares[(g,)](prediction, target, part, n, self.delta, PER=8, BLOCK=256)
        finish[(1,)](part, out, g, n, BLOCK=512)
        return out
