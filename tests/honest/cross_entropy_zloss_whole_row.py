# task: cross_entropy_zloss
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def row_loss(x, t, out, V, scale, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + r * V + i, mask=i < V, other=-float("inf"))
    top = tl.max(v, 0)
    lse = top + tl.log(tl.sum(tl.exp(v - top), 0))
    label = tl.load(t + r)
    at = tl.sum(tl.where(i == label, v, 0.0), 0)
    tl.store(out + r, tl.where(label == -100, 0.0, lse - at + scale * lse * lse))


@torch.compile
def reference(logits, target, scale):
    lse = logits.logsumexp(-1)
    return F.cross_entropy(logits, target, reduction="none") + scale * lse**2


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.register_buffer("scale", torch.tensor(scale), persistent=False)
        self.scale_value = scale

    def forward(self, logits, target):
        out = torch.empty(logits.shape[0], device=logits.device)
        row_loss[(logits.shape[0],)](
            logits, target, out, logits.shape[1], self.scale_value, BLOCK=triton.next_power_of_2(logits.shape[1])
        )
        return out
