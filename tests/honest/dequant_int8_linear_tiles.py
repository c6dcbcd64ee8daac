# task: dequant_int8_linear
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def w8_matmul(
    a_ptr, q_ptr, s_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_qn, stride_qk, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak
    q_ptrs = q_ptr + offs_k[:, None] * stride_qk + offs_n[None, :] * stride_qn
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(tl.cdiv(K, BLOCK_K)):
        left = K - k * BLOCK_K
        a = tl.load(a_ptrs, mask=(offs_m[:, None] < M) & (offs_k[None, :] < left), other=0.0)
        q = tl.load(q_ptrs, mask=(offs_k[:, None] < left) & (offs_n[None, :] < N), other=0)
        acc += tl.dot(a, q.to(a.dtype), input_precision="ieee")
        a_ptrs += BLOCK_K * stride_ak
        q_ptrs += BLOCK_K * stride_qk
    acc *= tl.load(s_ptr + offs_n, mask=offs_n < N, other=0.0)[None, :]
    c_ptrs = c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :] * stride_cn
    tl.store(c_ptrs, acc, mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, x, code, scale):
        M, K = x.shape
        N = code.shape[0]
        c = torch.empty((M, N), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(M, 16), triton.cdiv(N, 16))
        w8_matmul[grid](x, code, scale, c, M, N, K, *x.stride(), *code.stride(), *c.stride(), BLOCK_M=16, BLOCK_N=16, BLOCK_K=16)
        return c
