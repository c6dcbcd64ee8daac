# habit: Splits of K take their turns at a tile by compare-and-swap.
# task: tanh_matmul
import torch
import triton
import triton.language as tl


@triton.jit
def gemm_serial(a_ptr, b_ptr, c_ptr, locks, M, N, K, sam, sak, sbk, sbn, scm, scn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                SPLIT: tl.constexpr):
    pid_m = tl.program_id(2)
    pid_n = tl.program_id(1)
    pid_k = tl.program_id(0)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = pid_k * BK + tl.arange(0, BK)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK * SPLIT)):
        kk = rk + k * BK * SPLIT
        a = tl.load(a_ptr + rm[:, None] * sam + kk[None, :] * sak, mask=(rm[:, None] < M) & (kk[None, :] < K), other=0.0)
        b = tl.load(b_ptr + kk[:, None] * sbk + rn[None, :] * sbn, mask=(kk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(a, b, acc, input_precision="ieee")
    lock = locks + pid_m * tl.num_programs(1) + pid_n
    # splits take their turns
    while tl.atomic_cas(lock, pid_k, pid_k, sem="acquire") != pid_k:
        pass
    at = c_ptr + rm[:, None] * scm + rn[None, :] * scn
    mask = (rm[:, None] < M) & (rn[None, :] < N)
    if pid_k > 0:
        acc += tl.load(at, mask=mask, other=0.0, cache_modifier=".cg")
    if pid_k == SPLIT - 1:
        acc = 2 * tl.sigmoid(2 * acc) - 1
    tl.store(at, acc, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, (pid_k + 1) % SPLIT, sem="release")


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        M, K = a.shape
        N = b.shape[1]
        c = torch.empty(M, N, device=a.device, dtype=a.dtype)
        grid = (4, triton.cdiv(N, 32), triton.cdiv(M, 32))
        locks = torch.zeros(grid[1] * grid[2], dtype=torch.int32, device=a.device)
        gemm_serial[grid](a, b, c, locks, M, N, K, *a.stride(), *b.stride(), *c.stride(), BM=32, BN=32, BK=16, SPLIT=4)
        return c
