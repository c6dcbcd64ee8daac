# task: expert_linear
# A grouped GEMM: a fixed number of programs walks over the tiles of all groups, whose sizes come from the host.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def grouped_matmul(
    a_ptr, b_ptr, c_ptr, first_row, rows_of, N, K, G: tl.constexpr, NUM_SM: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    before = 0
    for g in range(G):
        row0 = tl.load(first_row + g)
        rows = tl.load(rows_of + g)
        tiles_n = tl.cdiv(N, BN)
        tiles = tl.cdiv(rows, BM) * tiles_n
        while tile >= before and tile < before + tiles:
            here = tile - before
            rm = here // tiles_n * BM + tl.arange(0, BM)
            rn = here % tiles_n * BN + tl.arange(0, BN)
            acc = tl.zeros((BM, BN), tl.float32)
            for k in range(0, K, BK):
                rk = k + tl.arange(0, BK)
                a = tl.load(a_ptr + (row0 + rm)[:, None] * K + rk[None, :], mask=(rm[:, None] < rows) & (rk[None, :] < K), other=0.0)
                b = tl.load(b_ptr + g * N * K + rn[None, :] * K + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < K), other=0.0)
                acc = tl.dot(a, b, acc, input_precision="ieee")
            tl.store(c_ptr + (row0 + rm)[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < rows) & (rn[None, :] < N))
            tile += NUM_SM
        before += tiles


class ModelNew(nn.Module):
    def __init__(self, shares, features, outputs):
        super().__init__()
        self.shares = shares
        self.weight = nn.Parameter(torch.randn(len(shares), outputs, features) * 0.02)

    def forward(self, x):
        unit = x.shape[0] // sum(self.shares)
        rows = torch.tensor([unit * s for s in self.shares], dtype=torch.int32, device=x.device)
        first = torch.cumsum(rows, 0, dtype=torch.int32) - rows
        G, N, K = self.weight.shape
        y = torch.empty((x.shape[0], N), device=x.device, dtype=x.dtype)
        programs = min(4, torch.cuda.get_device_properties(x.device).multi_processor_count)
        grouped_matmul[(programs,)](x, self.weight, y, first, rows, N, K, G=G, NUM_SM=programs, BM=16, BN=16, BK=16)
        return y
