# task: plain_mm
# Two phases: shares of the tiles that do not fill the machine, put together under locks, then whole tiles.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def product(a, b, rm, rn, first, last, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(first, last):
        rk = k * BK + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        y = tl.load(b + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0)
        acc = tl.dot(x, y, acc, input_precision="ieee")
    return acc


@triton.jit
def shares(a, b, c, locks, M, N, K, tiles, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid, programs = tl.program_id(0), tl.num_programs(0)
    gn, steps = tl.cdiv(N, BN), tl.cdiv(K, BK)
    per = tl.cdiv(tiles * steps, programs)
    start = pid * per
    stop = min(start + per, tiles * steps)
    while start < stop:
        end = min(start + (steps - start % steps), stop)
        tile = start // steps
        rm, rn = tile // gn * BM + tl.arange(0, BM), tile % gn * BN + tl.arange(0, BN)
        acc = product(a, b, rm, rn, start % steps, start % steps + end - start, M, N, K, BM, BN, BK)
        p = c + rm[:, None] * N + rn[None, :]
        keep = (rm[:, None] < M) & (rn[None, :] < N)
        if start % steps == 0:
            tl.store(p, acc, mask=keep)
            tl.debug_barrier()
            tl.atomic_xchg(locks + tile, 1)
        else:
            while tl.atomic_cas(locks + tile, 1, 1) != 1:
                pass
            tl.atomic_add(p, acc, mask=keep)
        start = end


@triton.jit
def whole(a, b, c, M, N, K, first, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tile = first + tl.program_id(0)
    gn = tl.cdiv(N, BN)
    rm, rn = tile // gn * BM + tl.arange(0, BM), tile % gn * BN + tl.arange(0, BN)
    acc = product(a, b, rm, rn, 0, tl.cdiv(K, BK), M, N, K, BM, BN, BK)
    tl.store(c + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, a, b):
        M, K = a.shape
        N = b.shape[1]
        c = torch.empty((M, N), device=a.device, dtype=a.dtype)
        programs, block = (132, 128) if M >= 1024 else (3, 16)
        tiles = triton.cdiv(M, block) * triton.cdiv(N, block)
        streamed = tiles % programs
        if streamed:
            locks = torch.zeros(streamed, device=a.device, dtype=torch.int32)
            shares[(programs,)](a, b, c, locks, M, N, K, streamed, BM=block, BN=block, BK=16)
        if tiles > streamed:
            whole[(tiles - streamed,)](a, b, c, M, N, K, streamed, BM=block, BN=block, BK=16)
        return c
