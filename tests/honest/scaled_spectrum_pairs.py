# habit: A complex result is written as pairs of real numbers, and returned as a complex view of them.
# task: scaled_spectrum
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale_pairs(s_ptr, gain_ptr, o_ptr, count, bins, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < count
    gain = tl.load(gain_ptr + (i // 2) % bins, mask=m)
    tl.store(o_ptr + i, tl.load(s_ptr + i, mask=m) * gain, mask=m)


class ModelNew(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(length // 2 + 1) + 0.5)

    def forward(self, x):
        pairs = torch.view_as_real(torch.fft.rfft(x)).contiguous()
        out = torch.empty_like(pairs)
        count = pairs.numel()
        scale_pairs[(triton.cdiv(count, 256),)](pairs, self.gain, out, count, pairs.shape[-2], BLOCK=256)
        return torch.view_as_complex(out)
