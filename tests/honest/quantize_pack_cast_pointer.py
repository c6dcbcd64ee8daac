# task: quantize_pack
# Codes of four columns are joined in the kernel and stored through a pointer to words.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def pack(x, scale, y, total, WORDS_A_ROW, BLOCK: tl.constexpr):
    words = y.to(tl.pointer_type(tl.int32))
    w = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = w < total
    s = tl.load(scale + w // WORDS_A_ROW, mask=keep, other=0.0)
    lane = tl.arange(0, 4)
    v = tl.load(x + w[:, None] * 4 + lane[None, :], mask=keep[:, None], other=0.0) * s[:, None]
    low = tl.floor(v)
    half = v - low
    up = (half > 0.5) | ((half == 0.5) & (low * 0.5 != tl.floor(low * 0.5)))
    code = tl.clamp(low + up.to(tl.float32), -127.0, 127.0).to(tl.int32) & 255
    tl.store(words + w, tl.sum(code << (8 * lane)[None, :], axis=1), mask=keep)


class ModelNew(nn.Module):
    def forward(self, x, scale):
        y = torch.empty(x.shape, device=x.device, dtype=torch.int8)
        total = x.numel() // 4
        pack[(triton.cdiv(total, 256),)](x, scale, y, total, x.shape[1] // 4, BLOCK=256)
        return y
