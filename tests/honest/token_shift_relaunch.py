# task: token_shift
# The object that a launch returns is launched again for the second mix.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def shift_mix(x, mix, out, S, D, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = d < D
    now = tl.load(x + row * D + d, mask=m, other=0.0)
    before = tl.load(x + row * D - D + d, mask=m & (row % S > 0), other=0.0)
    tl.store(out + row * D + d, before + tl.load(mix + d, mask=m, other=0.0) * (now - before), mask=m)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mix_key = nn.Parameter(torch.rand(dim))
        self.mix_gate = nn.Parameter(torch.rand(dim))

    def forward(self, x):
        B, S, D = x.shape
        key, gate = torch.empty_like(x), torch.empty_like(x)
        grid = (B * S, triton.cdiv(D, 32), 1)
        compiled = shift_mix[grid](x, self.mix_key, key, S, D, BLOCK=32)
        compiled[grid](x, self.mix_gate, gate, S, D, 32)
        return key, gate
