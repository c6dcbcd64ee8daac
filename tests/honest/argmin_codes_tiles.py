# habit: A running argmin over tiles of a product; the row that it finds is looked up by its place.
# task: argmin_codes
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl


@triton.jit
def nearest(x_ptr, code_ptr, place_ptr, out_ptr, M, K, D: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr):
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    x = tl.load(x_ptr + r[:, None] * D + d[None, :], mask=r[:, None] < M, other=0.0)
    xx = tl.sum(x * x, 1)
    best = tl.full([BM], float("inf"), tl.float32)
    place = tl.zeros([BM], tl.int32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        c = tl.load(code_ptr + k[:, None] * D + d[None, :], mask=k[:, None] < K, other=0.0)
        dist = xx[:, None] - 2.0 * tl.dot(x, tl.trans(c), input_precision="ieee") + tl.sum(c * c, 1)[None, :]
        dist = tl.where(k[None, :] < K, dist, float("inf"))
        v, i = tl.min(dist, axis=1, return_indices=True)
        better = v < best
        best = tl.where(better, v, best)
        place = tl.where(better, i + k0, place)
    tl.store(place_ptr + r, place.to(tl.int64), mask=r < M)
    picked = tl.load(code_ptr + place[:, None] * D + d[None, :], mask=r[:, None] < M)
    tl.store(out_ptr + r[:, None] * D + d[None, :], picked, mask=r[:, None] < M)


class ModelNew(nn.Module):
    def __init__(self, codes, dim):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(codes, dim))

    def forward(self, x):
        m, d = x.shape
        place = torch.empty(m, dtype=torch.long, device=x.device)
        out = torch.empty_like(x)
        nearest[(triton.cdiv(m, 16),)](x, self.codebook, place, out, m, self.codebook.shape[0], D=d, BM=16, BK=32)
        return out, place
