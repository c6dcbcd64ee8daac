"""Every private or unstable name of torch and triton that the verifier uses, in one place.

`tests/verifier/base/test_compat.py` tries each one, so the next release of either breaks one test with a clear name.
Written against triton 3.6 to 3.9 and torch 2.11 to 2.13.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
import os
import re
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import triton
from triton import knobs as triton_knobs
from triton._C.libtriton import ir, llvm
from triton.backends.compiler import GPUTarget, Language
from triton.compiler.code_generator import CodeGenerator
from triton.compiler.compiler import ASTSource, make_backend
from triton.compiler.errors import CompilationError
from triton.language.semantic import TritonSemantic
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, TensorWrapper

if TYPE_CHECKING:
    import torch

M = TypeVar("M")

__all__ = [
    "ById",
    "GPUTarget",
    "Specialised",
    "answer_generated_code",
    "asking_nvml",
    "before_gpu_benchmarks",
    "called_directly",
    "check_globals",
    "cudnn_searches",
    "entry",
    "excerpts",
    "forks_cannot_use_cuda",
    "has_default_device",
    "hash_libraries",
    "hash_versions",
    "inductor_backend",
    "link_excerpts",
    "lower",
    "make_ttir",
    "mode_depth",
    "no_dispatch",
    "no_torch_functions",
    "normalisations",
    "operations",
    "parse_ttir",
    "redraws",
    "rehint",
    "replace_run",
    "set_allocator",
    "set_driver",
    "skip_locations",
    "skip_unused_checks",
    "specialise",
    "storage_key",
]


# --- torch (imported where it is used: the compiler's process does without) ----------------------------------------


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of a tensor's storage, for as long as the storage is kept alive. Meta tensors have no address to use."""
    return tensor.untyped_storage()._cdata


def inductor_backend(mode: str | None) -> Any:
    """What `torch.compile(mode=mode)` compiles a graph with: a graph and example inputs → a callable."""
    import torch

    return torch._TorchCompileInductorWrapper(mode, None, False)


@contextlib.contextmanager
def asking_nvml() -> Iterator[None]:
    """Within, torch asks NVML whether there are GPUs, if that works: forks of a process that has asked CUDA cannot use it."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def forks_cannot_use_cuda() -> bool:
    """In a fork: whether torch refuses to use CUDA here, since the process that was forked had used it."""
    import torch

    return torch.cuda._is_in_bad_fork()


def hash_versions() -> None:
    """Have Inductor find the hashes of torch and of Triton that its caches' keys hold, which reads all of both."""
    from torch._inductor.codecache import torch_key
    from torch._inductor.runtime.triton_compat import triton_key

    torch_key()
    triton_key()


def set_allocator(settings: str) -> None:
    """Settings of torch's allocator of GPU memory, such as `max_split_size_mb:256`, for this process."""
    import torch

    # torch before 2.10 has it under the other name
    made: Any = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (made or torch._C._cuda_cudaCachingAllocator_set_allocator_settings)(settings)  # pyright: ignore


@contextlib.contextmanager
def before_gpu_benchmarks(check: Callable[[], None]) -> Iterator[None]:
    """Within, Inductor calls `check`, which may raise, before it measures something on a GPU to choose how to compile."""
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.runtime.benchmarking import benchmarker

    kind: Any = type(benchmarker)
    measure = kind.benchmark_gpu

    def checked(*args: Any, **kwargs: Any) -> Any:
        check()
        return measure(*args, **kwargs)

    # before torch 2.13, a pass keeps the method that it finds first
    forget: Callable[[], None] = getattr(pad_mm.get_do_bench, "cache_clear", lambda: None)
    forget()
    kind.benchmark_gpu = checked
    try:
        yield
    finally:
        kind.benchmark_gpu = measure
        forget()


def no_torch_functions() -> Any:
    """Context in which no TorchFunctionMode intercepts calls."""
    import torch

    return torch._C.DisableTorchFunction()


def called_directly(mode: type[M]) -> type[M]:
    """A class of dispatch modes without what torch puts around `__torch_dispatch__`, which takes 3 us a call: it keeps Dynamo
    away from it, which compiles nothing where these modes are on."""
    kind: Any = mode
    kind.__torch_dispatch__ = inspect.unwrap(kind.__torch_dispatch__)
    return mode


def mode_depth() -> tuple[int, int]:
    """How many modes of torch are on in this thread: function modes and dispatch modes."""
    import torch

    return torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def has_default_device() -> bool:
    """Whether `torch.set_default_device` has put a mode on."""
    import torch

    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None) is not None


def torch_settings() -> dict[str, Any]:
    """Settings of the process that change what others compute, and hooks on what autograd saves. Those that a program of
    inference commonly chooses (TF32, cuDNN's search) are not among them."""
    import torch

    return {
        "default dtype": torch.get_default_dtype(),
        "saved_tensors_hooks": torch._C._autograd._top_saved_tensors_default_hooks(True),  # pyright: ignore[reportAttributeAccessIssue]
        "anomaly mode": torch.is_anomaly_enabled(),
        "multithreading of autograd": torch._C._is_multithreading_enabled(),
        "cudnn.enabled": torch.backends.cudnn.enabled,
        "autocast": (torch.is_autocast_enabled("cuda"), torch.is_autocast_enabled("cpu")),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic.fill_uninitialized_memory": getattr(torch.utils.deterministic, "fill_uninitialized_memory", None),
    }


def cudnn_searches() -> Any:
    """What answers `torch.backends.cudnn.benchmark`, by its `getter`."""
    import torch

    return vars(type(torch.backends.cudnn))["benchmark"]


def no_dispatch() -> Any:
    """Context in which no TorchDispatchMode intercepts calls, so that arithmetic is real."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def redraws(frame: types.FrameType) -> bool:
    """Whether a frame is torch's initialisation that draws again until no number is out of range (from torch 2.13)."""
    import torch

    return frame.f_code is torch.nn.init._no_grad_trunc_normal_.__code__


def answer_generated_code() -> None:
    """Give what Inductor's generated code imports from torch's C parts; a build without CUDA lacks it, or asks for a driver."""
    import torch

    def empty_strided_cuda(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")

    parts: Any = torch._C
    parts._cuda_getCurrentRawStream = lambda device: 0
    parts._dynamo.guards._empty_strided_cuda = empty_strided_cuda


@cache
def normalisations() -> Mapping[Any, Callable[..., Any]]:
    """Operator → its decomposition into simpler operations, for norms and softmax: torch's own decompositions."""
    import torch
    from torch._decomp import get_decompositions

    aten = torch.ops.aten
    norms = (aten.native_layer_norm, aten.native_group_norm, aten.native_batch_norm, aten._native_batch_norm_legit)
    return get_decompositions([*norms, aten._native_batch_norm_legit_no_training, aten._softmax, aten._log_softmax])


# --- triton --------------------------------------------------------------------------------------------------------


def set_driver(driver: object) -> None:
    """Make `driver` the active Triton driver, so that nothing calls CUDA."""
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
    """Bind a launch's arguments and specialise it (divisibility by 16, values of 1, None folded) as Triton does."""
    kwargs = {"debug": False, "instrumentation_mode": "", **kwargs}
    _, _, _, backend, binder = fn.device_caches[0]
    bound, specialization, extra = binder(*args, **kwargs)
    key = f"{specialization}{extra}"
    place = ById(fn), key
    if place not in _packed:  # Triton does it once for each of these, too: it takes longer than the rest of a launch
        _packed[place] = fn._pack_args(backend, kwargs, bound, specialization, extra)
    options, signature, constexprs, attrs = _packed[place]
    return Specialised(key, bound, signature, constexprs, attrs, options, backend)


class ById:
    """An object as a key; a kernel's own hash is that of its source."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ById) and other.value is self.value


_packed: dict[tuple[ById, str], Any] = {}
"""Options, signature, constants and hints of a kernel's specialisations, by `Specialised.key`."""


def hash_libraries() -> None:
    """Find the hash of every kernel and device function that there is: those of Triton's own, which any kernel may call, take
    milliseconds."""
    for function in gc.get_objects():
        if type(function) is JITFunction:
            _ = function.cache_key


def check_globals(fn: Any) -> None:
    """Raise RuntimeError if a global constant has changed that a kernel has compiled in, as a launch of Triton does."""
    _ = fn.cache_key  # finds them
    for (name, _), (value, names) in fn.used_global_vals.items():
        if names.get(name, value) != value:
            raise RuntimeError(f"the global variable {name} has changed since {fn.__name__} was compiled with it")


def make_ttir(fn: Any, special: Specialised, target: GPUTarget) -> str:
    """Lower one specialisation to optimised TTIR text without source locations. Raises Triton's CompilationError."""
    context = _context(special.backend)
    source = ASTSource(fn, special.signature, special.constexprs, special.attrs)
    codegen, modules = special.backend.get_codegen_implementation(special.options), special.backend.get_module_map()
    module = source.make_ir(target, special.options, codegen, modules, context)
    stages = stages_of(special.backend, special.options)
    return stages["ttir"](module, metadata_of(target, special.options)).str_nodebug()


def skip_unused_checks() -> None:
    """From now on, generate no checks of integer overflow unless a kernel is compiled with `debug`.

    Triton generates them for every sum and product, asserts nothing, and removes them again: a fifth of the time to TTIR.
    """
    check = TritonSemantic.binary_op_sanitize_overflow_impl

    def checked(semantic: Any, *operation: Any) -> None:
        if semantic.builder.options.debug:
            check(semantic, *operation)

    TritonSemantic.binary_op_sanitize_overflow_impl = checked  # pyright: ignore[reportAttributeAccessIssue]


def skip_locations() -> None:
    """From now on, note no places in the source while kernels are lowered, but where one does not compile.

    Triton notes one for every node and every name, and `make_ttir` gives a text without them: a quarter of the time to IR.
    """

    def visit(generator: Any, node: Any) -> Any:
        if node is None:
            return None
        before, generator.cur_node = generator.cur_node, node
        try:
            found = ast.NodeVisitor.visit(generator, node)
        except CompilationError:
            raise
        except Exception as error:
            # the innermost node is still the current one
            raise CompilationError(generator.jit_fn.src, generator.cur_node, repr(error)) from None
        generator.cur_node = before
        return found

    kind: Any = CodeGenerator
    kind.visit, kind._maybe_set_loc_to_name = visit, lambda *_: None


_ARGUMENT = re.compile(r"(%arg\d+: (?:!tt\.ptr<[\w, ]+>|\w+))(?: \{tt\.divisibility = \d+ : i32\})?")
_HEAD = re.compile(r"tt\.func public @\w+\((.*)\) attributes")


def rehint(ttir: str, special: Specialised) -> str | None:
    """`make_ttir` of a specialisation that differs from the text's own only in what its arguments are divisible by.

    Those hints are attributes of the arguments, and no pass before TTIR reads them. None if the arguments cannot be parsed.
    """
    hints = [special.attrs.get((i,), []) for i, kind in enumerate(special.signature.values()) if kind != "constexpr"]
    head = _HEAD.search(ttir)
    arguments = _ARGUMENT.findall(head[1]) if head else []
    if head is None or len(arguments) != len(hints) or _ARGUMENT.sub("", head[1]).replace(", ", ""):
        return None
    texts = ("".join(f" {{{name} = {value} : i32}}" for name, value in hint) for hint in hints)
    line = ", ".join(argument + text for argument, text in zip(arguments, texts, strict=True))
    return ttir[: head.start(1)] + line + ttir[head.end(1) :]


def kernel_sources() -> dict[Any, str]:
    """The text of every kernel and device function that was made since this process was forked, by object."""
    found = [one for one in gc.get_objects() if type(one) is JITFunction]
    return {ById(one): one.src for one in found}


_MADE_BY_BINDER = ("CompiledKernel", "compile", "ASTSource")
"""Attributes that Triton gives a kernel at its first launch."""


def odd_kernel(fn: Any) -> str:
    """What of a kernel is not as Triton made it, so that another launch than the recorded one may run; '' if nothing is."""
    if type(fn) is not JITFunction:
        return "class"
    usual = vars(triton.language.softmax).keys()
    for name, value in vars(fn).items():
        if name in _MADE_BY_BINDER:
            if value is not getattr(triton.compiler, name):
                return name
        elif name not in usual and hasattr(JITFunction, name):
            return name
    if put := [name for name, kept in _KEPT.items() if id(fn) in kept and name in vars(fn)]:
        return put[0]
    made_by = getattr(fn.device_caches.default_factory, "__self__", None)
    return "" if made_by is fn else "device_caches"


_KEPT: dict[str, dict[int, Any]] = {"hash": {}, "device_caches": {}}
"""By which machine code is found again, of each kernel by id. Kernels live as long as this process."""


def guard_kernels(refuse: Callable[[str], None]) -> None:
    """From now on, what finds a kernel's machine code again is out of its attributes; `refuse` is called with a name whenever
    somebody asks for it."""

    def guarded(name: str) -> property:
        kept = _KEPT[name]

        def get(fn: Any) -> Any:
            refuse(name)
            return kept[id(fn)] if id(fn) in kept else vars(fn)[name]

        def put(fn: Any, value: Any) -> None:
            refuse(name)
            if id(fn) not in kept:  # one that is older than this
                vars(fn).pop(name, None)
            kept[id(fn)] = value

        return property(get, put)

    for name in _KEPT:
        setattr(JITFunction, name, guarded(name))


def tensor_of(value: Any) -> Any:
    """The tensor behind a launch argument: itself, or of a `triton.reinterpret`. Other objects as they are."""
    plain = type(value) is TensorWrapper and vars(value).keys() <= {"dtype", "base", "data", "device", "shape"}
    return value.base if plain else value


def replace_run(launch: Callable[..., Any], tune: Callable[..., Any], best: Callable[[Any], Any]) -> None:
    """Call `launch` and `tune` where Triton would launch a kernel or autotune one, and `best` for `best_config`."""
    JITFunction.run = launch  # pyright: ignore[reportAttributeAccessIssue]
    Autotuner.run = tune  # pyright: ignore[reportAttributeAccessIssue]
    Autotuner.best_config = property(best)  # pyright: ignore[reportAttributeAccessIssue]


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
    metadata = metadata_of(target, options)
    for name, stage in stages_of(backend, options).items():
        if name != "ttir":
            module = stage(module, metadata)
    return module, metadata


def excerpts(functions: Mapping[str, int], target: GPUTarget) -> dict[str, str]:
    """LLVM IR of each of these libdevice functions, with those that it calls. Each takes so many floats and returns a float."""
    backend: Any = make_backend(target)
    libraries = [path for _, path in backend.parse_options({}).extern_libs]
    with tempfile.NamedTemporaryFile("w", suffix=".ll") as file:
        file.write(_linked(functions, libraries, backend))
        file.flush()
        # one by one from this rather than from the library, which takes long to parse
        return {symbol: _linked({symbol: operands}, [file.name], backend) for symbol, operands in functions.items()}


def _linked(functions: Mapping[str, int], libraries: list[str], backend: Any) -> str:
    """LLVM IR of a module that calls each function and has been linked with these libraries."""
    lines = []
    for number, (symbol, operands) in enumerate(functions.items()):
        types, values = ", ".join(["f32"] * operands), ", ".join(f"%arg{i}" for i in range(operands))
        typed = ", ".join(f"%arg{i}: f32" for i in range(operands))
        lines += [
            f"  llvm.func @{symbol}({types}) -> f32",
            f"  llvm.func @caller{number}({typed}) -> f32 {{",
            f"    %0 = llvm.call @{symbol}({values}) : ({types}) -> f32",
            "    llvm.return %0 : f32",
            "  }",
        ]
    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write("\n".join(["module {", *lines, "}"]))
        file.flush()
        mlir = ir.parse_mlir_module(file.name, _context(backend))
    llvm.init_targets()
    context = llvm.context()
    module = llvm.to_module(mlir, context)
    llvm.link_extern_libs(module, libraries)
    text = str(module)
    for symbol in functions:  # linking only these symbols makes them internal; make them visible again
        text = text.replace(f"define internal float @{symbol}(", f"define float @{symbol}(")
    return text


def link_excerpts(texts: Mapping[str, str]) -> None:
    """From now on, link kernels that need no other libdevice functions with excerpts (made by `excerpts`).

    Triton would parse all of libdevice for each kernel, which takes longer than anything else it does for a small one.
    """
    link = llvm.link_extern_libs

    def linked(module: Any, paths: list[str]) -> None:
        needed = [f.name for f in module.get_functions() if f.is_declaration() and f.name.startswith("__nv_")]
        if not texts.keys() >= set(needed):
            link(module, paths)
            return
        for symbol in needed:
            with tempfile.NamedTemporaryFile("w", suffix=".ll") as file:
                file.write(texts[symbol])
                file.flush()
                link(module, [file.name])

    llvm.link_extern_libs = linked  # pyright: ignore[reportAttributeAccessIssue]


def knobs() -> dict[str, Any]:
    """Triton's settings of compiling and launching, set by the environment or the program, and the hooks of every launch."""
    found: dict[str, Any] = {}
    for group in ("compilation", "runtime", "language"):
        settings = getattr(triton_knobs, group)
        for name, value in (vars(type(settings)) | vars(settings) | settings.knobs).items():
            if isinstance(value, triton_knobs.HookChain):
                found[f"{group}.{name}"] = tuple(value.calls)
            elif not name.startswith("__") and not isinstance(value, property | triton_knobs.env_base):
                found[f"{group}.{name}"] = value
    return found


def rounds_to_tf32(descriptor: Any) -> bool:
    """Whether loads through a host-made tensor descriptor round float32 to TF32: Triton 3.7 can ask for that, 3.6 cannot."""
    return bool(getattr(descriptor, "round_f32_to_tf32", False))


@cache
def _context_of(target: GPUTarget) -> Any:
    backend = make_backend(target)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    return context


def _context(backend: Any) -> Any:
    """One context for each process: the dialects take milliseconds to load, and a fork inherits them."""
    return _context_of(backend.target)


def stages_of(backend: Any, options: Any) -> dict[str, Callable[[Any, Any], Any]]:
    stages: dict[str, Callable[[Any, Any], Any]] = {}
    backend.add_stages(stages, options, Language.TRITON)
    return stages


def metadata_of(target: GPUTarget, options: Any) -> dict[str, Any]:
    return {"target": target, **options.__dict__}
