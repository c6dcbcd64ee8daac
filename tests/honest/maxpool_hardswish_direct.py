# task: maxpool_hardswish
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pool(x, y, n, H, W, OH, OW, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    ow, oh, plane = i % OW, (i // OW) % OH, i // (OW * OH)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    for kh in tl.static_range(3):
        for kw in tl.static_range(3):
            h, w = oh * 2 - 1 + kh, ow * 2 - 1 + kw
            ok = live & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            best = tl.maximum(best, tl.load(x + (plane * H + h) * W + w, mask=ok, other=-float("inf")))
    y_val = best * tl.minimum(tl.maximum(best + 3.0, 0.0), 6.0) / 6.0
    tl.store(y + i, y_val, mask=live)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        B, C, H, W = x.shape
        OH, OW = (H - 1) // 2 + 1, (W - 1) // 2 + 1
        y = torch.empty((B, C, OH, OW), device=x.device, dtype=x.dtype)
        n = y.numel()
        pool[(triton.cdiv(n, 256),)](x, y, n, H, W, OH, OW, BLOCK=256)
        return y
