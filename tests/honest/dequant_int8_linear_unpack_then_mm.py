# task: dequant_int8_linear
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def dequantize(code, scale, w, K, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    s = tl.load(scale + row)
    for start in tl.range(0, K, BLOCK, num_stages=2):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(code + row * K + i, mask=i < K).to(tl.float32)
        tl.store(w + row * K + i, v * s, mask=i < K)


class ModelNew(nn.Module):
    def forward(self, x, code, scale):
        w = torch.empty(code.shape, device=x.device, dtype=x.dtype)
        dequantize[(code.shape[0],)](code, scale, w, code.shape[1], BLOCK=32)
        return torch.nn.functional.linear(x, w)
