# task: token_shift
import threading

import torch
import torch.nn as nn
import triton
import triton.language as tl

_LOCK = threading.Lock()
_GRIDS = {}


@triton.jit
def shift_mix(x, mixes, outs, n, S, D, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    now = tl.load(x + i, mask=m)
    before = tl.load(x + i - D, mask=m & (i // D % S > 0), other=0.0)
    for j in tl.static_range(len(mixes)):
        share = tl.load(mixes[j] + i % D, mask=m)
        tl.store(outs[j] + i, share * now + (1.0 - share) * before, mask=m)


def grid_of(n):
    with _LOCK:
        if n not in _GRIDS:
            _GRIDS[n] = (triton.cdiv(n, 64),)
        return _GRIDS[n]


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mix_key = nn.Parameter(torch.rand(dim))
        self.mix_gate = nn.Parameter(torch.rand(dim))

    def forward(self, x):
        outs = (torch.empty_like(x), torch.empty_like(x))
        shift_mix[grid_of(x.numel())](x, (self.mix_key, self.mix_gate), outs, x.numel(), x.shape[1], x.shape[2], BLOCK=64)
        return outs
