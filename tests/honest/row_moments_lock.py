# task: row_moments
# A sum behind a lock, as the layer norm of Triton's tutorials adds up its gradients.
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def moments(x, var, l1, sq, lock, M, N, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    ok = i < N
    v = tl.load(x + r * N + i, mask=ok, other=0.0)
    mean = tl.sum(v, 0) / N
    d = tl.where(ok, v - mean, 0.0)
    tl.store(var + r, tl.sum(d * d, 0) / (N - 1))
    tl.store(l1 + r, tl.sum(tl.abs(v), 0))
    own = tl.sum(v * v, 0) / (M * N)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(sq, tl.load(sq) + own)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


class ModelNew(nn.Module):
    def forward(self, x):
        M, N = x.shape
        var, l1 = (torch.empty(M, device=x.device) for _ in range(2))
        sq = x.new_zeros(())
        lock = torch.zeros(1, dtype=torch.int32, device=x.device)
        moments[(M,)](x, var, l1, sq, lock, M, N, BLOCK=triton.next_power_of_2(N))
        return var, l1, sq
