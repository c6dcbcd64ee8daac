# task: linear_gelu
# The weight is transposed and copied in forward, then read row-major; wrapper function with optional bias.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gemm(a_ptr, b_ptr, bias_ptr, c_ptr, M, N, K, HAS_BIAS: tl.constexpr, ACT: tl.constexpr, B: tl.constexpr):
    rm = tl.program_id(1) * B + tl.arange(0, B)
    rn = tl.program_id(0) * B + tl.arange(0, B)
    acc = tl.zeros([B, B], dtype=tl.float32)
    for k in tl.range(0, K, B, num_stages=2):
        rk = k + tl.arange(0, B)
        a = tl.load(a_ptr + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0)
        b = tl.load(b_ptr + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0)
        acc += tl.dot(a, b, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias_ptr + rn, mask=rn < N, other=0)[None, :]
    if ACT == "gelu":
        acc = 0.5 * acc * (1 + tl.erf(acc * 0.7071067811865475))
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


def triton_linear(x, weight_t, bias=None, act=""):
    M, K = x.shape
    N = weight_t.shape[1]
    c = torch.empty((M, N), device=x.device, dtype=x.dtype)
    gemm[(triton.cdiv(N, 32), triton.cdiv(M, 32))](x, weight_t, bias, c, M, N, K, bias is not None, act, B=32)
    return c


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        return triton_linear(x, self.linear.weight.t().contiguous(), self.linear.bias, act="gelu")
