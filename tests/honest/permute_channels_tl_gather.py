# habit: Picks columns of a tile by tl.gather.
# task: permute_channels
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, order_ptr, scale_ptr, y_ptr, M, C: tl.constexpr, ROWS: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, C)
    order = tl.load(order_ptr + c).to(tl.int32)
    scale = tl.load(scale_ptr + c)
    tile = tl.load(x_ptr + r[:, None] * C + c[None, :], mask=r[:, None] < M, other=0.0)
    picked = tl.gather(tile, tl.broadcast_to(order[None, :], (ROWS, C)), axis=1)
    tl.store(y_ptr + r[:, None] * C + c[None, :], picked * scale[None, :], mask=r[:, None] < M)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.register_buffer("order", torch.arange(channels).flip(0))
        self.scale = nn.Parameter(torch.rand(channels) + 0.5)

    def forward(self, x):
        y = torch.empty_like(x)
        grid = lambda meta: (triton.cdiv(x.size(0), meta["ROWS"]),)
        kernel[grid](x, self.order, self.scale, y, x.size(0), C=x.size(1), ROWS=4)
        return y
