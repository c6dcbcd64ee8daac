"""Every private or unstable name of torch and triton that the verifier uses, in one place.

`tests/test_compat.py` tries each one, so the next release of either breaks one test with a clear name. Written against
triton 3.6 to 3.9 and torch 2.11 to 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

if TYPE_CHECKING:
    import torch

__all__ = [
    "GPUTarget",
    "Specialised",
    "entry",
    "lower",
    "make_ttir",
    "no_dispatch",
    "no_torch_functions",
    "normalisations",
    "operations",
    "parse_ttir",
    "replace_run",
    "set_driver",
    "specialise",
    "storage_key",
]


# --- torch (imported where it is used: the compiler's process does without) ----------------------------------------


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of a tensor's storage, for as long as the storage is kept alive. Meta tensors have no address to use."""
    return tensor.untyped_storage()._cdata


def no_torch_functions() -> Any:
    """Context in which no TorchFunctionMode is asked."""
    import torch

    return torch._C.DisableTorchFunction()


def no_dispatch() -> Any:
    """Context in which no TorchDispatchMode is asked: real arithmetic for a moment."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


@cache
def normalisations() -> Mapping[Any, Callable[..., Any]]:
    """Norms and softmax as programs of plainer operations, by operator: torch's own decompositions."""
    import torch
    from torch._decomp import get_decompositions

    aten = torch.ops.aten
    norms = (aten.native_layer_norm, aten.native_group_norm, aten.native_batch_norm, aten._native_batch_norm_legit)
    return get_decompositions([*norms, aten._native_batch_norm_legit_no_training, aten._softmax, aten._log_softmax])


# --- triton --------------------------------------------------------------------------------------------------------


def set_driver(driver: object) -> None:
    """Make `driver` answer for the active GPU, so that nothing asks CUDA."""
    triton.runtime.driver.set_active(driver)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class Specialised:
    """One launch's arguments as Triton's own binder sees them."""

    key: str
    """Equal for launches that share machine code."""
    bound: Mapping[str, Any]
    """Every parameter by name, constexprs and defaults included."""
    signature: Mapping[str, Any]
    """Parameter → Triton type, or `constexpr`."""
    constexprs: Mapping[tuple[int, ...], Any]
    attrs: Mapping[tuple[int, ...], Any]
    options: Any
    backend: Any


def specialise(fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Specialised:
    """Bind a launch and decide its specialisation (divisibility by 16, values of 1, None folded) as Triton does."""
    kwargs = {"debug": False, "instrumentation_mode": "", **kwargs}
    _, _, _, backend, binder = fn.device_caches[0]
    bound, specialization, extra = binder(*args, **kwargs)
    options, signature, constexprs, attrs = fn._pack_args(backend, kwargs, bound, specialization, extra)
    return Specialised(f"{specialization}{extra}", bound, signature, constexprs, attrs, options, backend)


def make_ttir(fn: Any, special: Specialised, target: GPUTarget) -> str:
    """Lower one specialisation to optimised TTIR text without source locations. Raises Triton's CompilationError."""
    context = _context(special.backend)
    source = ASTSource(fn, special.signature, special.constexprs, special.attrs)
    codegen, modules = special.backend.get_codegen_implementation(special.options), special.backend.get_module_map()
    module = source.make_ir(target, special.options, codegen, modules, context)
    stages = _stages(special.backend, special.options)
    return stages["ttir"](module, _metadata(target, special.options)).str_nodebug()


def replace_run(launch: Callable[..., None], tune: Callable[..., None]) -> None:
    """Let `launch` and `tune` be called where Triton would launch a kernel or tune one."""
    JITFunction.run = launch  # pyright: ignore[reportAttributeAccessIssue]
    Autotuner.run = tune  # pyright: ignore[reportAttributeAccessIssue]


def parse_ttir(path: str, target: GPUTarget, options: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Read a TTIR file: (module, backend, its options). Raises RuntimeError when it does not parse or verify."""
    backend = make_backend(target)
    context = _context(backend)
    module = ir.parse_mlir_module(path, context)
    module.context = context
    return module, backend, backend.parse_options(dict(options))


def operations(module: Any) -> list[tuple[str, str | None]]:
    """(name, `symbol` attribute or None) of every operation of a parsed module."""
    found: list[tuple[str, str | None]] = []
    module.walk(lambda op: found.append((op.get_name(), op.get_str_attr("symbol"))))
    return found


def entry(module: Any) -> tuple[str, list[str]]:
    """The public function's name and its argument types, such as `*f32` and `i32`."""
    name = module.get_entry_func_name()
    return name, [str(kind) for kind in module.get_function_signature(module.get_function(name))]


def lower(module: Any, backend: Any, options: Any, target: GPUTarget) -> tuple[bytes, dict[str, Any]]:
    """Run Triton's pipeline from TTIR to a cubin. Returns it with the pipeline's metadata."""
    metadata = _metadata(target, options)
    for name, stage in _stages(backend, options).items():
        if name != "ttir":
            module = stage(module, metadata)
    return module, metadata


def _context(backend: Any) -> Any:
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    return context


def _stages(backend: Any, options: Any) -> dict[str, Callable[[Any, Any], Any]]:
    stages: dict[str, Callable[[Any, Any], Any]] = {}
    backend.add_stages(stages, options, Language.TRITON)
    return stages


def _metadata(target: GPUTarget, options: Any) -> dict[str, Any]:
    return {"target": target, **options.__dict__}
