# task: geglu_packed
import torch
import torch.nn as nn
import triton
import triton.language as tl


def prune(configs, named_args, **kwargs):
    H = named_args["H"]
    kept = [c for c in configs if c.kwargs["BLOCK"] <= max(16, 2 * H)]
    return kept or configs[:1]


@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, num_warps=w) for b in (16, 32, 1024) for w in (1, 4)],
    key=["H"],
    prune_configs_by={"early_config_prune": prune},
)
@triton.jit
def geglu_rows(X, Y, H, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = col < H
    a = tl.load(X + row * (2 * H) + col, mask=keep)
    b = tl.load(X + row * (2 * H) + H + col, mask=keep)
    u = 0.7978845608028654 * (b + 0.044715 * b * b * b)
    e = tl.exp(-2.0 * tl.abs(u))
    t = (1.0 - e) / (1.0 + e)
    t = tl.where(u < 0, -t, t)
    tl.store(Y + row * H + col, a * (0.5 * b * (1.0 + t)), mask=keep)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda and x.is_contiguous()
        T, H = x.shape[0], x.shape[1] // 2
        y = x.new_empty(T, H)
        geglu_rows[lambda meta: (triton.cdiv(H, meta["BLOCK"]), T)](x, y, H)
        return y
