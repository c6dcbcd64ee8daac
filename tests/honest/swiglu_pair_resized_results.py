# habit: Results that torch, or the code, makes as large as they must be.
# task: swiglu_pair
import torch
import triton
import triton.language as tl


@triton.jit
def k(g, u, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(g + i, mask=i < n)
    y = tl.load(u + i, mask=i < n)
    tl.store(o + i, x * y, mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, g, u):
        s = torch.sigmoid(g, out=torch.empty(0, device=g.device))
        t = torch.empty(0, device=g.device)
        torch.mul(s, g, out=t)
        o = torch.empty((0,), device=g.device).resize_(g.shape)
        k[(triton.cdiv(g.numel(), 512),)](t, u, o, g.numel(), BLOCK=512)
        return o
