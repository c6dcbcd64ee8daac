# task: quantize_pack
# Four codes are stored as one number of 32 bits.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def code(x, s):
    q = x * s
    q = tl.where(tl.abs(q - tl.floor(q)) == 0.5, 2.0 * tl.floor(q * 0.5 + 0.5), tl.floor(q + 0.5))
    return tl.clamp(q, -127.0, 127.0).to(tl.int32) & 255


@triton.jit
def pack(x, scale, y, D, WORDS, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    w = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    keep = w < WORDS
    s = tl.load(scale + row)
    p = x + row * D + w * 4
    word = code(tl.load(p, mask=keep, other=0.0), s)
    word |= code(tl.load(p + 1, mask=keep, other=0.0), s) << 8
    word |= code(tl.load(p + 2, mask=keep, other=0.0), s) << 16
    word |= code(tl.load(p + 3, mask=keep, other=0.0), s) << 24
    tl.store(y + row * WORDS + w, word, mask=keep)


class ModelNew(nn.Module):
    def forward(self, x, scale):
        T, D = x.shape
        y = torch.empty((T, D), device=x.device, dtype=torch.int8)
        words = D // 4
        pack[(T, triton.cdiv(words, 1024))](x, scale, y.view(torch.int32), D, words, BLOCK=1024)
        return y
