# task: l2_normalize_rows
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def l2norm_fwd(x, y, length, T, D, eps, BT: tl.constexpr, BD: tl.constexpr):
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = tl.arange(0, BD)
    m = (t[:, None] < T) & (d[None, :] < D)
    v = tl.load(x + t[:, None] * D + d[None, :], mask=m, other=0.0)
    n = tl.maximum(tl.sqrt(tl.sum(v * v, 1)), eps)
    tl.store(length + t, n, mask=t < T)
    tl.store(y + t[:, None] * D + d[None, :], v / n[:, None], mask=m)


class ModelNew(nn.Module):
    def forward(self, x):
        T, D = x.shape
        y, length = torch.empty_like(x), torch.empty(T, device=x.device, dtype=x.dtype)
        l2norm_fwd[(triton.cdiv(T, 4),)](x, y, length, T, D, 1e-6, BT=4, BD=triton.next_power_of_2(D))
        return y, length
