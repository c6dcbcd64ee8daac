# task: cross_entropy_zloss
# Two passes over the vocabulary in blocks: an online log-sum-exp, as fused losses of training libraries do it.
import torch
import torch.nn as nn
import triton
import triton.language as tl

try:
    import apex  # noqa: F401

    HAS_APEX = True
except ImportError:
    HAS_APEX = False


@triton.jit
def cross_entropy_fwd(logits_ptr, stride, target_ptr, loss_ptr, V, ignore_index, lse_square_scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    y = tl.load(target_ptr + row)
    if y == ignore_index:
        tl.store(loss_ptr + row, 0.0)
        return
    logits_ptr += row * stride
    m = float("-inf")
    d = 0.0
    ori = tl.load(logits_ptr + y).to(tl.float32)
    for i in range(0, V, BLOCK):
        cols = i + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + cols, mask=cols < V, other=float("-inf")).to(tl.float32)
        new = tl.maximum(m, tl.max(x))
        d = d * tl.exp(m - new) + tl.sum(tl.exp(x - new))
        m = new
    lse = m + tl.log(d)
    tl.store(loss_ptr + row, lse - ori + lse_square_scale * lse * lse)


class ModelNew(nn.Module):
    def __init__(self, scale, ignore_index=-100):
        super().__init__()
        self.scale, self.ignore_index = scale, ignore_index

    def forward(self, logits, target):
        T, V = logits.shape
        loss = torch.zeros(T, dtype=torch.float32, device=logits.device)
        block = min(32768, triton.next_power_of_2(V) // 2)
        cross_entropy_fwd[(T,)](
            logits, logits.stride(-2), target, loss, V, self.ignore_index, self.scale, BLOCK=block, num_warps=4
        )
        return loss
