# task: dict_inputs
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def blend(left, right, shift, out, n, D, a, b, gain, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    v = tl.load(left + i, mask=m) * a + tl.load(right + i, mask=m) * b + tl.load(shift + i % D, mask=m)
    tl.store(out + i, v * gain, mask=m)


class ModelNew(nn.Module):
    def __init__(self, settings):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(settings["width"]))
        self.scales = settings["scales"]

    def forward(self, batch, gain):
        x = batch["left"]
        out = torch.empty_like(x)
        n, (a, b) = x.numel(), self.scales
        blend[(triton.cdiv(n, 1024),)](x, batch["right"], self.shift, out, n, x.shape[1], a, b, gain, BLOCK=1024)
        return out
