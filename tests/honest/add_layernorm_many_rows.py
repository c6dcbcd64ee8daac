# task: add_layernorm
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_var(v, mask, n):
    mean = tl.sum(v, axis=1) / n
    d = tl.where(mask, v - mean[:, None], 0.0)
    return mean, tl.sum(d * d, axis=1) / n


@triton.heuristics({"BLOCK_D": lambda a: triton.next_power_of_2(a["D"]), "num_warps": lambda a: 8 if a["D"] > 512 else 4})
@triton.jit
def rows_norm(X, R, W, B, Y, M, D, eps, ROWS: tl.constexpr, BLOCK_D: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK_D)
    mask = (r[:, None] < M) & (c[None, :] < D)
    offs = r[:, None] * D + c[None, :]
    v = tl.load(X + offs, mask=mask, other=0.0) + tl.load(R + offs, mask=mask, other=0.0)
    mean, var = mean_var(v, mask, D)
    w = tl.load(W + c, mask=c < D, other=0.0)
    b = tl.load(B + c, mask=c < D, other=0.0)
    tl.store(Y + offs, (v - mean[:, None]) * tl.rsqrt(var + eps)[:, None] * w[None, :] + b[None, :], mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, residual):
        assert x.shape == residual.shape
        with torch.cuda.device(x.device):
            y = torch.empty_like(x)
            D = x.size(-1)
            M = x.numel() // D
            rows_norm[(triton.cdiv(M, 4),)](x, residual, self.norm.weight, self.norm.bias, y, M, D, eps=self.norm.eps, ROWS=4)
        return y
