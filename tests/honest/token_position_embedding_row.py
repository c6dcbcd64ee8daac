# task: token_position_embedding
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["S"])
def lookup(ids, token, position, y, S, D, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.load(ids + row)
    for i in range(0, D, BLOCK):
        d = i + tl.arange(0, BLOCK)
        v = tl.load(token + at * D + d, mask=d < D) * scale
        tl.store(y + row * D + d, v + tl.load(position + (row % S) * D + d, mask=d < D), mask=d < D)


class ModelNew(nn.Module):
    def __init__(self, tokens, positions, dim):
        super().__init__()
        self.token_table = nn.Parameter(torch.randn(tokens, dim))
        self.position_table = nn.Parameter(torch.randn(positions, dim))
        self.scale = dim**0.5

    def forward(self, ids):
        D = self.token_table.shape[1]
        y = torch.empty(*ids.shape, D, device=ids.device)
        lookup[(ids.numel(),)](ids, self.token_table, self.position_table, y, ids.shape[-1], D, self.scale, BLOCK=16)
        return y
