# habit: Kernels as static methods of a class.
# task: pixel_shuffle_relu
import torch
import torch.nn as nn
import triton
import triton.language as tl


class Kernels:
    BLOCK = 512

    @staticmethod
    @triton.jit
    def shuffle(x, bias, y, n, C, H, W, BLOCK: tl.constexpr):
        o = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        m = o < n
        ow = o % (2 * W)
        t = o // (2 * W)
        oh = t % (2 * H)
        t = t // (2 * H)
        c = t % C
        b = t // C
        ic = c * 4 + (oh % 2) * 2 + ow % 2
        v = tl.load(x + ((b * 4 * C + ic) * H + oh // 2) * W + ow // 2, mask=m, other=0.0)
        v += tl.load(bias + ic, mask=m, other=0.0)
        tl.store(y + o, tl.maximum(v, 0.0), mask=m)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4 * channels) * 0.1)

    def forward(self, x):
        b, c4, h, w = x.shape
        y = x.new_empty(b, c4 // 4, 2 * h, 2 * w)
        grid = (triton.cdiv(y.numel(), Kernels.BLOCK),)
        Kernels.shuffle[grid](x.contiguous(), self.bias, y, y.numel(), c4 // 4, h, w, BLOCK=Kernels.BLOCK)
        return y
