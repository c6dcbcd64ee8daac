# task: linear_gelu
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def persistent(x_ptr, w_ptr, b_ptr, y_ptr, M, N, K, NUM_SMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * tiles_n
    for tile in range(tl.program_id(0), tiles, NUM_SMS):
        rm = (tile // tiles_n) * BM + tl.arange(0, BM)
        rn = (tile % tiles_n) * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            rk = k + tl.arange(0, BK)
            x = tl.load(x_ptr + rm[:, None] * K + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :], other=0.0)
            w = tl.load(w_ptr + rn[:, None] * K + rk[None, :], mask=(rn < N)[:, None] & (rk < K)[None, :], other=0.0)
            acc = tl.dot(x, tl.trans(w), acc, input_precision="ieee")
        acc += tl.load(b_ptr + rn, mask=rn < N, other=0.0)[None, :]
        y = acc * 0.5 * (1.0 + tl.erf(acc * 0.7071067811865476))
        tl.store(y_ptr + rm[:, None] * N + rn[None, :], y, mask=(rm < M)[:, None] & (rn < N)[None, :])


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        M, K = x.shape
        N = self.linear.weight.size(0)
        y = torch.empty(M, N, device="cuda", dtype=x.dtype)
        sms = torch.cuda.get_device_properties(x.device).multi_processor_count
        tiles = triton.cdiv(M, 64) * triton.cdiv(N, 64)
        persistent[(min(sms, tiles),)](x, self.linear.weight, self.linear.bias, y, M, N, K, min(sms, tiles), BM=64, BN=64, BK=16)
        return y
