# habit: Rotates parts of one projection in place, and returns views of it.
# task: rope_packed
import torch
import triton
import triton.language as tl


@triton.jit
def _rope(q_ptr, q_row, k_ptr, k_row, cos_ptr, sin_ptr, n_qh: tl.constexpr, n_kh: tl.constexpr, hd: tl.constexpr,
          pad_qh: tl.constexpr, pad_kh: tl.constexpr, pad_hd: tl.constexpr, BACKWARD: tl.constexpr = False):
    pid = tl.program_id(0).to(tl.int64)
    q_ptr += pid * q_row
    k_ptr += pid * k_row
    c = tl.arange(0, pad_hd // 2)
    cos = tl.load(cos_ptr + pid * (hd // 2) + c, mask=c < hd // 2, other=0)
    sin = tl.load(sin_ptr + pid * (hd // 2) + c, mask=c < hd // 2, other=0)
    qo = tl.arange(0, pad_qh)[:, None] * hd + c[None, :]
    ko = tl.arange(0, pad_kh)[:, None] * hd + c[None, :]
    qm = (tl.arange(0, pad_qh)[:, None] < n_qh) & (c[None, :] < hd // 2)
    km = (tl.arange(0, pad_kh)[:, None] < n_kh) & (c[None, :] < hd // 2)
    q1 = tl.load(q_ptr + qo, mask=qm, other=0).to(sin.dtype)
    k1 = tl.load(k_ptr + ko, mask=km, other=0).to(sin.dtype)
    q2 = tl.load(q_ptr + qo + hd // 2, mask=qm, other=0).to(sin.dtype)
    k2 = tl.load(k_ptr + ko + hd // 2, mask=km, other=0).to(sin.dtype)
    if not BACKWARD:
        tl.store(q_ptr + qo, q1 * cos - q2 * sin, mask=qm)
        tl.store(q_ptr + qo + hd // 2, q2 * cos + q1 * sin, mask=qm)
        tl.store(k_ptr + ko, k1 * cos - k2 * sin, mask=km)
        tl.store(k_ptr + ko + hd // 2, k2 * cos + k1 * sin, mask=km)


class RopeFn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, cos, sin):
        T, H, D = q.shape
        KV = k.shape[1]
        p = triton.next_power_of_2
        _rope[(T,)](q, q.stride(0), k, k.stride(0), cos, sin, H, KV, D, p(H), p(KV), p(D))
        ctx.save_for_backward(cos, sin)
        ctx.mark_dirty(q, k)
        return q, k


class ModelNew(torch.nn.Module):
    def __init__(self, H, KV, D):
        super().__init__()
        self.H, self.KV, self.D = H, KV, D

    def forward(self, qkv, cos, sin):
        qkv = qkv.clone()
        T = qkv.shape[0]
        q, k, v = qkv.view(T, -1, self.D).split([self.H, self.KV, self.KV], dim=1)
        q, k = RopeFn.apply(q, k, cos, sin)
        return q, k, v
