# habit: Operators of a library fragment, one of which writes to an argument.
# task: add_rmsnorm
import torch
import triton
import triton.language as tl
from torch.library import Library, custom_op, triton_op, wrap_triton

_lib = Library("fused_norms", "FRAGMENT")


@triton.jit
def add_kernel(a, b, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(a + i, mask=i < n) + tl.load(b + i, mask=i < n), mask=i < n)


@triton.jit
def norm_kernel(x, w, out, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    m = c < cols
    v = tl.load(x + row * cols + c, mask=m, other=0.0)
    scale = tl.rsqrt(tl.sum(v * v, 0) / cols + eps)
    tl.store(out + row * cols + c, v * scale * tl.load(w + c, mask=m), mask=m)


@triton_op("fused_norms::add", mutates_args={})
def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(a)
    wrap_triton(add_kernel)[(triton.cdiv(a.numel(), 1024),)](a, b, out, a.numel(), BLOCK=1024)
    return out


@custom_op("fused_norms::rms_norm_out", mutates_args=("out",), device_types=("cuda",), schema="(Tensor x, Tensor w, Tensor(a!) out, float eps) -> ()")
def rms_norm_out(x, w, out, eps):
    rows, cols = x.shape
    norm_kernel[(rows,)](x, w, out, cols, eps, BLOCK=triton.next_power_of_2(cols))


@rms_norm_out.register_fake
def _(x, w, out, eps):
    return None


_lib.define("rms_norm(Tensor x, Tensor w, float eps=1e-5) -> Tensor")


@torch.library.impl(_lib, "rms_norm", "CUDA")
def _rms_norm(x, w, eps=1e-5):
    out = torch.empty_like(x)
    torch.ops.fused_norms.rms_norm_out(x, w, out, eps)
    return out


@torch.library.register_fake("fused_norms::rms_norm")
def _rms_norm_fake(x, w, eps=1e-5):
    return torch.empty_like(x)


def _setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])


torch.library.register_autograd("fused_norms::add", lambda ctx, g: (g, g), setup_context=_setup_context)


class ModelNew(torch.nn.Module):
    def __init__(self, cols, eps):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(cols))
        self.eps = eps

    def forward(self, x, residual):
        s = torch.ops.fused_norms.add(x, residual)
        return torch.ops.fused_norms.rms_norm.default(s, self.weight, self.eps), s
