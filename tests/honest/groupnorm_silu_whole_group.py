# task: groupnorm_silu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def groupnorm_silu(x, w, b, y, C, HW, GROUPS: tl.constexpr, eps, BLOCK: tl.constexpr):
    image_group = tl.program_id(0)
    per = C // GROUPS
    n = per * HW
    i = tl.arange(0, BLOCK)
    keep = i < n
    v = tl.load(x + image_group * n + i, mask=keep, other=0.0)
    mean = tl.sum(v, 0) / n
    d = tl.where(keep, v - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(d * d, 0) / n + eps)
    c = image_group % GROUPS * per + i // HW
    z = d * rstd * tl.load(w + c, mask=keep, other=0.0) + tl.load(b + c, mask=keep, other=0.0)
    tl.store(y + image_group * n + i, z * tl.sigmoid(z), mask=keep)


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        B, C, H, W = x.shape
        g = self.norm.num_groups
        y = torch.empty_like(x)
        groupnorm_silu[(B * g,)](
            x, self.norm.weight, self.norm.bias, y, C, H * W, GROUPS=g, eps=self.norm.eps,
            BLOCK=triton.next_power_of_2(C // g * H * W),
        )
        return y
