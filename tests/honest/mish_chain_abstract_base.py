# habit: Modules derive from an abstract base class.
# task: mish_chain
import abc
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


class FusedOp(nn.Module, abc.ABC):
    @abc.abstractmethod
    def kernel(self, x): ...

    @property
    @abc.abstractmethod
    def block(self) -> int: ...

    @classmethod
    def supported(cls, x) -> bool:
        return x.is_cuda

    def forward(self, x):
        assert self.supported(x), f"{type(self).__name__} wants CUDA tensors"
        return self.kernel(x)


class ModelNew(FusedOp):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    @property
    def block(self):
        return 1024

    def kernel(self, x):
        return launch(x, self.scale)
