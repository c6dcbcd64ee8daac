# task: huber_mean
# The last program to arrive adds up what all have stored: one launch.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def huber(p, t, part, arrived, out, n, delta, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    pid, count = tl.program_id(0), tl.num_programs(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    d = tl.abs(tl.load(p + i, mask=i < n, other=0.0) - tl.load(t + i, mask=i < n, other=0.0))
    loss = tl.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta))
    tl.store(part + pid, tl.sum(loss, axis=0))
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1) == count - 1:
        total = 0.0
        for start in range(0, count, PARTS):
            k = start + tl.arange(0, PARTS)
            total += tl.sum(tl.load(part + k, mask=k < count, other=0.0), axis=0)
        tl.store(out, total / n)


class ModelNew(nn.Module):
    def __init__(self, delta):
        super().__init__()
        self.delta = delta

    def forward(self, prediction, target):
        n = prediction.numel()
        block = 1024 if n > 4096 else 16
        g = triton.cdiv(n, block)
        part = torch.empty(g, device=prediction.device)
        arrived = torch.zeros(1, dtype=torch.int32, device=prediction.device)
        out = torch.empty([], device=prediction.device)
        huber[(g,)](prediction, target, part, arrived, out, n, self.delta, BLOCK=block, PARTS=1024)
        return out
