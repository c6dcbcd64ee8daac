# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl

def prune(configs, named_args, **kwargs):
    return [c for c in configs if c.kwargs["BLOCK"] <= max(256, triton.next_power_of_2(named_args["n"]))] or configs[:1]


@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, num_warps=w) for b in (128, 256, 1024) for w in (4, 8)],
    key=["n"],
    prune_configs_by={"early_config_prune": prune},
    reset_to_zero=["y"],
    warmup=10,
    rep=20,
)
@triton.jit
def mish_chain(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    t = v * scale
    e = tl.exp(tl.minimum(t, 20.0))
    m = e * (e + 2.0)
    t = tl.where(t > 20.0, t, t * m / (m + 2.0))
    tl.store(y + i, tl.minimum(tl.maximum(t + v, -1.0), 3.0), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        mish_chain[lambda m: (triton.cdiv(n, m['BLOCK']),)](x, y, n, self.scale)
        return y
