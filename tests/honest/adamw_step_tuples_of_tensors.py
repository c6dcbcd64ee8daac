# habit: Named tuples of tensors as kernel arguments.
# task: adamw_step
import dataclasses
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamHyper:
    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float

    @property
    def decay(self) -> float:
        return 1.0 - self.lr * self.weight_decay

    def corrections(self, step: int) -> tuple[float, float]:
        return 1.0 - self.beta1**step, 1.0 - self.beta2**step


class AdamState(NamedTuple):
    param: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor


@triton.jit(do_not_specialize=["bias1", "bias2", "lr", "decay", "eps"])
def _adamw_kernel(src, grad, dst, lr, decay, beta1, beta2, rest1, rest2, eps, bias1, bias2, numel, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    offs = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offs < numel
    p = tl.load(src[0] + offs, mask=mask)
    m = tl.load(src[1] + offs, mask=mask)
    v = tl.load(src[2] + offs, mask=mask)
    g = tl.load(grad + offs, mask=mask).to(tl.float32)
    m = beta1 * m + rest1 * g
    v = beta2 * v + rest2 * g * g
    denom = tl.sqrt_rn(tl.div_rn(v, bias2 + tl.zeros_like(v))) + eps
    p = p * decay - lr * tl.fdiv(m / bias1, denom)
    tl.store(dst[0] + offs, p, mask=mask)
    tl.store(dst[1] + offs, m, mask=mask)
    tl.store(dst[2] + offs, v, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self, lr, beta1, beta2, eps, wd):
        super().__init__()
        self.hyper = AdamHyper(lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=wd)

    @torch.no_grad()
    def forward(self, p, g, m, v, step):
        state = AdamState(p, m, v)
        if any(t.shape != g.shape for t in state):
            raise ValueError(f"shapes differ: {[tuple(t.shape) for t in state]} and {tuple(g.shape)}")
        new = AdamState._make(torch.empty_like(t, memory_format=torch.contiguous_format) for t in state)
        bias1, bias2 = self.hyper.corrections(step)
        n = p.numel()
        _adamw_kernel[triton.cdiv(n, 1024),](state, g, new, self.hyper.lr, self.hyper.decay, self.hyper.beta1, self.hyper.beta2,
                                             1 - self.hyper.beta1, 1 - self.hyper.beta2, self.hyper.eps, bias1, bias2, n, BLOCK=1024)
        return tuple(new)

    def extra_repr(self) -> str:
        return ", ".join(f"{f.name}={getattr(self.hyper, f.name)}" for f in dataclasses.fields(self.hyper))
