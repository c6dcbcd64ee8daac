# habit: A class in front of Triton's dispatch keeps compiled kernels by the key of their arguments.
# task: softmax_middle
import inspect
import logging
import threading
from collections import OrderedDict
from typing import Any, Dict, Optional

import torch
import triton
import triton.language as tl

logger = logging.getLogger(__name__)


class LibEntry(triton.KernelInterface):
    """Keeps compiled kernels by the key of their arguments, in front of Triton's own dispatch."""

    def __init__(self, fn):
        self.fn = fn
        self.arg_names = fn.arg_names
        self.divisibility = 16
        self.kernel_cache: Dict[Any, Any] = {}
        fn_ = self.fn
        while not isinstance(fn_, triton.runtime.JITFunction):
            fn_ = fn_.fn
        self.jit_function = fn_
        self.specialize_indices = [p.num for p in self.jit_function.params if not p.is_constexpr and not p.do_not_specialize]
        self.do_not_specialize_indices = [p.num for p in self.jit_function.params if not p.is_constexpr and p.do_not_specialize]
        self.lock = threading.Lock()
        self.signature = inspect.signature(fn_.fn)

    def key(self, spec_args, dns_args, const_args):
        def spec_arg(arg):
            if hasattr(arg, "data_ptr"):
                return (arg.dtype, arg.data_ptr() % self.divisibility == 0)
            return (type(arg), arg)

        def dns_arg(arg):
            if hasattr(arg, "data_ptr"):
                return arg.dtype
            if not isinstance(arg, int):
                return type(arg)
            if -(2**31) <= arg and arg <= 2**31 - 1:
                return "i32"
            return "i64"

        return tuple(spec_arg(a) for a in spec_args) + tuple(dns_arg(a) for a in dns_args) + tuple(const_args)

    def run(self, *args, **kwargs):
        grid = kwargs["grid"]
        k_args = OrderedDict()
        params = self.jit_function.params
        bound = self.signature.bind_partial(*args, **{k: v for k, v in kwargs.items() if k in self.arg_names})
        bound.apply_defaults()
        spec_args, dns_args, const_args = [], [], []
        for i, (name, val) in enumerate(bound.arguments.items()):
            k_args[name] = val
            if i in self.specialize_indices:
                spec_args.append(val)
            elif i in self.do_not_specialize_indices:
                dns_args.append(val)
            else:
                const_args.append(val)
        entry_key = self.key(spec_args, dns_args, const_args)
        with self.lock:
            kernel = self.kernel_cache.get(entry_key)
        if kernel is None:
            kernel = self.fn.run(*args, **kwargs)
            with self.lock:
                self.kernel_cache[entry_key] = kernel
            return kernel
        fn = self.fn
        while not isinstance(fn, triton.runtime.JITFunction):
            fn = fn.fn
        if callable(grid):
            grid = grid({**k_args, **{k: v for k, v in kwargs.items() if k not in ("grid", "warmup")}})
        grid = grid + (1, 1)
        runtime = [v for n, v in k_args.items() if not params[self.arg_names.index(n)].is_constexpr]
        kernel[grid[0:3]](*runtime)
        return kernel


def libentry():
    def decorator(fn):
        return LibEntry(fn)

    return decorator


@libentry()
@triton.jit
def softmax_kernel_non_inner(output_ptr, input_ptr, M, N, K, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    pid_k = tl.program_id(1)
    pid_m = tl.program_id(0)
    k_offsets = pid_k * TILE_K + tl.arange(0, TILE_K)
    n_offsets = tl.arange(0, TILE_N)[:, None]
    offset = pid_m * N * K + n_offsets * K + k_offsets
    mask = (n_offsets < N) & (k_offsets < K)
    inp = tl.load(input_ptr + offset, mask=mask, other=-float("inf"))
    m = tl.max(inp, 0)
    e = tl.exp(inp - m[None, :])
    z = tl.sum(e, 0)
    tl.store(output_ptr + offset, e / z, mask=mask)


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dim, dtype):
        logger.debug("GEMS SOFTMAX")
        assert dim >= -x.ndim and dim < x.ndim, "Invalid dim"
        dim = dim % x.ndim
        M = 1
        N = x.shape[dim]
        for i in range(dim):
            M *= x.shape[i]
        inp = x.contiguous()
        if dtype is None:
            dtype = x.dtype
        out = torch.empty_like(inp, dtype=dtype)
        K = inp.numel() // M // N
        with torch.cuda.device(inp.device):
            tile_k = 8
            grid = lambda meta: (M, triton.cdiv(K, tile_k), 1)
            softmax_kernel_non_inner[grid](out, inp, M, N, K, TILE_N=triton.next_power_of_2(N), TILE_K=tile_k)
        ctx.save_for_backward(out)
        ctx.dim = dim
        return out


def softmax(x, dim=-1, dtype=None):
    return Softmax.apply(x, dim, dtype)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return softmax(x, 1)
