# habit: Decorators that make inputs contiguous, environment switches read at import, do_not_specialize.
# task: gated_linear_attention
import contextlib
import functools
import os
from functools import lru_cache
from typing import Any, Callable, Dict, Optional, Tuple

import torch
import triton
import triton.language as tl
import triton.language.extra.libdevice as tldevice
from packaging import version

FLA_CI_ENV = os.getenv("FLA_CI_ENV") == "1"
USE_CUDA_GRAPH = os.environ.get("FLA_USE_CUDA_GRAPH", "0") == "1"
NUM_WARPS = [2, 4]

if os.environ.get("FLA_USE_FAST_OPS", "0") == "1":
    exp = tldevice.fast_expf
else:
    exp = tl.exp
    log = tl.log


@lru_cache(maxsize=None)
def get_available_device() -> str:
    try:
        return triton.runtime.driver.active.get_current_target().backend
    except BaseException:
        return "cpu"


@lru_cache(maxsize=None)
def _check_platform():
    device = get_available_device()
    mapping = {"cuda": "nvidia", "hip": "amd", "xpu": "intel"}
    return mapping.get(device, device)


device = get_available_device()
device_platform = _check_platform()
device_torch_lib = getattr(torch, device)
is_nvidia_hopper = device_platform == "nvidia" and ("NVIDIA H" in torch.cuda.get_device_name(0) or torch.cuda.get_device_capability()[0] >= 9)


@functools.lru_cache(maxsize=None)
def check_shared_mem(arch: str = "none", tensor_idx: int = 0) -> bool:
    try:
        props = triton.runtime.driver.active.utils.get_device_properties(tensor_idx)
        return props["max_shared_mem"] >= 102400
    except Exception:
        return False


if version.parse(torch.__version__) >= version.parse("2.4"):
    autocast_custom_fwd = functools.partial(torch.amp.custom_fwd, device_type=device)
    autocast_custom_bwd = functools.partial(torch.amp.custom_bwd, device_type=device)

    def custom_device_ctx(index: int):
        return device_torch_lib.device(index)

else:
    autocast_custom_fwd = device_torch_lib.amp.custom_fwd

    def custom_device_ctx(index: int):
        return torch.cuda.device(index)


def input_guard(fn: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        contiguous_args = (i if not isinstance(i, torch.Tensor) else i.contiguous() for i in args)
        contiguous_kwargs = {k: (v if not isinstance(v, torch.Tensor) else v.contiguous()) for k, v in kwargs.items()}
        tensor = None
        for arg in args:
            if isinstance(arg, torch.Tensor):
                tensor = arg
                break
        if tensor is None:
            for value in kwargs.values():
                if isinstance(value, torch.Tensor):
                    tensor = value
                    break
        if tensor is not None:
            ctx = custom_device_ctx(tensor.device.index)
        else:
            ctx = contextlib.nullcontext()
        with ctx:
            return fn(*contiguous_args, **contiguous_kwargs)

    return wrapper


@triton.heuristics({"USE_INITIAL_STATE": lambda args: args["h0"] is not None, "STORE_FINAL_STATE": lambda args: args["ht"] is not None})
@triton.autotune(
    configs=[triton.Config({"BV": BV}, num_warps=num_warps) for BV in [16, 32] for num_warps in NUM_WARPS],
    key=["K", "V"], use_cuda_graph=USE_CUDA_GRAPH,
)
@triton.jit(do_not_specialize=["T"])
def fused_recurrent_fwd_kernel(q, k, v, g, o, h0, ht, scale, T, B: tl.constexpr, H: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
                               BK: tl.constexpr, BV: tl.constexpr, REVERSE: tl.constexpr, USE_INITIAL_STATE: tl.constexpr,
                               STORE_FINAL_STATE: tl.constexpr):
    i_v, i_k, i_nh = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    i_n, i_h = i_nh // H, i_nh % H
    all = B * T
    bos, eos = i_n * T, i_n * T + T
    o_k = i_k * BK + tl.arange(0, BK)
    o_v = i_v * BV + tl.arange(0, BV)
    p_q = q + (bos + ((T - 1) if REVERSE else 0)) * H * K + i_h * K + o_k
    p_k = k + (bos + ((T - 1) if REVERSE else 0)) * H * K + i_h * K + o_k
    p_v = v + (bos + ((T - 1) if REVERSE else 0)) * H * V + i_h * V + o_v
    p_g = g + (bos + ((T - 1) if REVERSE else 0)) * H * K + i_h * K + o_k
    p_o = o + ((i_k * all + bos) + ((T - 1) if REVERSE else 0)) * H * V + i_h * V + o_v
    m_k = o_k < K
    m_v = o_v < V
    m_h = m_k[:, None] & m_v[None, :]
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    if USE_INITIAL_STATE:
        p_h0 = h0 + i_nh * K * V + o_k[:, None] * V + o_v[None, :]
        b_h += tl.load(p_h0, mask=m_h, other=0).to(tl.float32)
    for _ in range(0, T):
        b_q = tl.load(p_q, mask=m_k, other=0).to(tl.float32) * scale
        b_k = tl.load(p_k, mask=m_k, other=0).to(tl.float32)
        b_v = tl.load(p_v, mask=m_v, other=0).to(tl.float32)
        b_g = tl.load(p_g, mask=m_k, other=0).to(tl.float32)
        b_g = tl.where(b_g > 0, -tl.log(1 + tl.exp(-b_g)), b_g - tl.log(1 + tl.exp(b_g)))
        b_h = b_h * exp(b_g[:, None])
        b_h += b_k[:, None] * b_v[None, :]
        b_o = tl.sum(b_h * b_q[:, None], 0)
        tl.store(p_o, b_o.to(p_o.dtype.element_ty), mask=m_v)
        p_q += (-1 if REVERSE else 1) * H * K
        p_k += (-1 if REVERSE else 1) * H * K
        p_v += (-1 if REVERSE else 1) * H * V
        p_g += (-1 if REVERSE else 1) * H * K
        p_o += (-1 if REVERSE else 1) * H * V
    if STORE_FINAL_STATE:
        p_ht = ht + i_nh * K * V + o_k[:, None] * V + o_v[None, :]
        tl.store(p_ht, b_h.to(p_ht.dtype.element_ty), mask=m_h)


class FusedRecurrentFunction(torch.autograd.Function):
    @staticmethod
    @input_guard
    @autocast_custom_fwd()
    def forward(ctx, q, k, v, g, scale: Optional[float] = None, initial_state: Optional[torch.Tensor] = None,
                output_final_state: bool = False, reverse: bool = False):
        B, T, H, K, V = *k.shape, v.shape[-1]
        BK = min(triton.next_power_of_2(K), 16)
        NK = triton.cdiv(K, BK)
        ht = q.new_empty(B, H, K, V, dtype=torch.float32) if output_final_state else None
        o = q.new_empty(NK, *v.shape, dtype=torch.float32)

        def grid(meta):
            return (triton.cdiv(V, meta["BV"]), NK, B * H)

        fused_recurrent_fwd_kernel[grid](q=q, k=k, v=v, g=g, o=o, h0=initial_state, ht=ht, scale=scale, T=T, B=B, H=H, K=K, V=V, BK=BK,
                                         REVERSE=reverse)
        o = o.sum(0)
        ctx.save_for_backward(q, k, v, g, initial_state, o)
        return o.to(q.dtype), ht


@torch.compiler.disable
def fused_recurrent_gla(q, k, v, gk=None, scale=None, initial_state=None, output_final_state=False, reverse=False, cu_seqlens=None):
    if cu_seqlens is not None:
        if q.shape[0] != 1:
            raise ValueError(f"The batch size is expected to be 1 rather than {q.shape[0]} when using `cu_seqlens`.")
    if scale is None:
        scale = k.shape[-1] ** -0.5
    return FusedRecurrentFunction.apply(q, k, v, gk, scale, initial_state, output_final_state, reverse)


class ModelNew(torch.nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, q, k, v, g):
        return fused_recurrent_gla(q, k, v, g, scale=self.scale, output_final_state=True)
