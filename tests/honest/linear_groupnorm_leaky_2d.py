# task: linear_groupnorm_leaky
# One program a row; the row is viewed as [groups, features of a group].
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def _norm_rows(Z, W, B, Y, G, P, slope, EPS: tl.constexpr, BG: tl.constexpr, BP: tl.constexpr):
    row = tl.program_id(0)
    g, p = tl.arange(0, BG), tl.arange(0, BP)
    offs = g[:, None] * P + p[None, :]
    mask = (g[:, None] < G) & (p[None, :] < P)
    z = tl.load(Z + row * G * P + offs, mask=mask, other=0.0)
    mean = tl.sum(z, 1) / P
    centred = tl.where(mask, z - mean[:, None], 0.0)
    var = tl.sum(centred * centred, 1) / P
    y = centred * tl.rsqrt(var + EPS)[:, None]
    y = y * tl.load(W + offs, mask=mask, other=0.0) + tl.load(B + offs, mask=mask, other=0.0)
    y = tl.maximum(y, 0.0) + slope * tl.minimum(y, 0.0)
    tl.store(Y + row * G * P + offs, y, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, num_groups, slope):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.GroupNorm(num_groups, out_features)
        self.slope = slope
        self.num_groups = num_groups

    def forward(self, x):
        z = F.linear(x, self.linear.weight, self.linear.bias).view(x.shape[0], self.num_groups, -1)
        y = torch.empty_like(z)
        G, P = z.shape[1:]
        _norm_rows[(z.shape[0],)](
            z, self.norm.weight, self.norm.bias, y, G, P, self.slope,
            EPS=1e-5, BG=triton.next_power_of_2(G), BP=triton.next_power_of_2(P), num_warps=8,
        )  # fmt: skip
        return y.flatten(1)
