# task: smooth_cross_entropy
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def ce_kernel(logits, target, loss, C, smoothing, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    m = c < C
    x = tl.load(logits + row * C + c, mask=m, other=float("-inf"))
    mx = tl.max(x, 0)
    lse = mx + tl.log(tl.sum(tl.exp(x - mx), 0))
    t = tl.load(target + row)
    xt = tl.load(logits + row * C + t)
    mean = tl.sum(tl.where(m, x, 0.0), 0) / C
    tl.store(loss + row, (1 - smoothing) * (lse - xt) + smoothing * (lse - mean))


class ModelNew(nn.Module):
    def __init__(self, smoothing):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits, target):
        N, C = logits.shape
        loss = torch.empty(N, device=logits.device, dtype=torch.float32)
        ce_kernel[(N,)](logits, target, loss, C, self.smoothing, BLOCK=triton.next_power_of_2(C), num_warps=8 if C > 2048 else 4)
        return loss.mean()
