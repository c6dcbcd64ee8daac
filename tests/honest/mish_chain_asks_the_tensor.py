# habit: Everything that one may ask of a tensor, in assertions.
# task: mish_chain
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mish_chain(x, y, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    t = v * scale
    e = tl.exp(tl.minimum(t, 20.0))
    m = e * (e + 2.0)
    t = tl.where(t > 20.0, t, t * m / (m + 2.0))
    tl.store(y + i, tl.minimum(tl.maximum(t + v, -1.0), 3.0), mask=i < n)


def launch(x, scale):
    y = torch.empty_like(x)
    n = x.numel()
    mish_chain[(triton.cdiv(n, 1024),)](x, y, n, scale, BLOCK=1024)
    return y


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        assert x.layout is torch.strided and not x.is_sparse and not x.is_quantized and not x.is_complex()
        assert x.dim() == x.ndim == len(x.size()) and x.nelement() == x.numel() and x.element_size() == x.dtype.itemsize
        assert x.is_contiguous(memory_format=torch.contiguous_format) and x.storage_offset() == 0
        assert x.untyped_storage().nbytes() >= x.nbytes
        assert not x.is_pinned() and not x.is_conj() and not x.is_neg() and not x.is_meta and not torch.is_inference(x) or True
        assert x.device.type == "cuda" and x.get_device() == x.device.index and x.is_floating_point()
        assert torch.is_tensor(x) and isinstance(x, torch.Tensor) and x.type() in ("torch.cuda.FloatTensor", "torch.cuda.HalfTensor")
        torch._check(x.numel() > 0, lambda: f"empty {x.shape}")
        torch._assert(x.dtype == torch.float32, "float32 is asked")
        torch._check_value(x.ndim >= 1)
        eps = torch.finfo(x.dtype).eps
        return launch(x, self.scale)
