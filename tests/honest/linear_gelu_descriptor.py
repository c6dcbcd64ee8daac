# task: linear_gelu
# Device-made tensor descriptors for the rows of x and of the weight where their strides allow, plain pointers where not.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tma_linear(x, w, b, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    x_desc = tl.make_tensor_descriptor(x, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    w_desc = tl.make_tensor_descriptor(w, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    pm, pn = tl.program_id(0), tl.program_id(1)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc += tl.dot(x_desc.load([pm * BM, k]), w_desc.load([pn * BN, k]).T, input_precision="ieee")
    rm, rn = pm * BM + tl.arange(0, BM), pn * BN + tl.arange(0, BN)
    acc += tl.load(b + rn, mask=rn < N, other=0.0)[None, :]
    out = acc * 0.5 * (1.0 + tl.erf(acc * 0.7071067811865476))
    tl.store(y + rm[:, None] * N + rn[None, :], out, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def plain_linear(x, w, b, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        xs = tl.load(x + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        ws = tl.load(w + rn[:, None] * K + rk[None, :], mask=(rn[:, None] < N) & (rk[None, :] < K), other=0.0)
        acc += tl.dot(xs, ws.T, input_precision="ieee")
    acc += tl.load(b + rn, mask=rn < N, other=0.0)[None, :]
    out = acc * 0.5 * (1.0 + tl.erf(acc * 0.7071067811865476))
    tl.store(y + rm[:, None] * N + rn[None, :], out, mask=(rm[:, None] < M) & (rn[None, :] < N))


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        M, K = x.shape
        w = self.linear.weight
        N = w.shape[0]
        y = torch.empty((M, N), device=x.device, dtype=x.dtype)
        triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device="cuda", dtype=torch.int8))
        kernel = tma_linear if K % 4 == 0 else plain_linear
        kernel[(triton.cdiv(M, 64), triton.cdiv(N, 64))](x, w, self.linear.bias, y, M, N, K, BM=64, BN=64, BK=32)
        return y
