# task: qk_norm
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def norm_heads(q, k, wq, wk, qo, ko, n_q, D, eps, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    m = i < D
    if pid < n_q:
        src, dst, w, row = q, qo, wq, pid
    else:
        src, dst, w, row = k, ko, wk, pid - n_q
    v = tl.load(src + row * D + i, mask=m, other=0.0)
    v = v * tl.rsqrt(tl.sum(v * v, 0) / D + eps) * tl.load(w + i, mask=m, other=0.0)
    tl.store(dst + row * D + i, v, mask=m)


class ModelNew(nn.Module):
    def __init__(self, dim, eps):
        super().__init__()
        self.q_weight = nn.Parameter(torch.ones(dim))
        self.k_weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, q, k):
        D = q.shape[-1]
        qo, ko = torch.empty_like(q), torch.empty_like(k)
        n_q, n_k = q.numel() // D, k.numel() // D
        norm_heads[(n_q + n_k,)](
            q, k, self.q_weight, self.k_weight, qo, ko, n_q, D, self.eps, BLOCK=triton.next_power_of_2(D), num_warps=1
        )
        return qo, ko
