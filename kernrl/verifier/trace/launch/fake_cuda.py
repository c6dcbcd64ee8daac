"""A fake GPU for tracing: what `torch.cuda` and Triton's driver answer where there is none.

Only for the trace child's process: `install` replaces public functions for good.
"""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from kernrl.verifier.base.compat import GPUTarget, answer_generated_code, set_driver
from kernrl.verifier.base.devices import arch_number, device_for
from kernrl.verifier.trace.launch import custom_ops
from kernrl.verifier.trace.recorder import CUDA
from kernrl.verifier.trace.untraceable import Untraceable

REFUSED = {
    "Stream": "CUDA streams are not traced: launch on the current stream",
    "stream": "CUDA streams are not traced: launch on the current stream",
    "ExternalStream": "CUDA streams are not traced: launch on the current stream",
    "set_stream": "CUDA streams are not traced: launch on the current stream",
    "Event": "CUDA events are not traced: leave timing to the verifier",
    "CUDAGraph": "CUDA graphs are not traced: write plain launches, the verifier captures them itself",
    "graph": "CUDA graphs are not traced: write plain launches, the verifier captures them itself",
    "make_graphed_callables": "CUDA graphs are not traced: write plain launches, the verifier captures them itself",
}
"""What of `torch.cuda` no candidate may use, and why."""

CUDA_VERSION, CUDNN_VERSION = "12.8", 91_000
"""What a build of torch without CUDA answers."""


def _refuse(sentence: str) -> Any:
    def refused(*_: Any, **__: Any) -> NoReturn:
        raise Untraceable(sentence)

    return refused


_AUTOCAST = "autocast is not traced: cast tensors with .to(dtype) where you mean it"


class _NoAutocast(contextlib.ContextDecorator):
    """autocast with `enabled=False`, as a context or a decorator; with `enabled=True` it is refused."""

    def __init__(self, *args: Any, enabled: bool = True, **kwargs: Any) -> None:
        if enabled:
            raise Untraceable(_AUTOCAST)

    def __enter__(self) -> None: ...

    def __exit__(self, *args: Any) -> None: ...


def _autocast_setter() -> Any:
    """In place of one of torch's setters, to which every autocast comes: of `(enabled)` or `(device, enabled)`."""

    def set_autocast(*setting: Any) -> None:
        if setting[-1]:
            raise Untraceable(_AUTOCAST)

    return set_autocast


class _RefusedOnUse:
    """`torch.compile` and its like: decorating with it is nothing, calling what it returns is refused."""

    def __init__(self, sentence: str, model: Any = None) -> None:
        self._sentence, self._model = sentence, model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._model is not None:
            raise Untraceable(self._sentence)
        return _RefusedOnUse(self._sentence, args[0]) if args else self


class _NoGrad(torch.no_grad):
    """inference_mode in a trace: under the real one, composite ops would not be decomposed."""

    depth = 0

    def __init__(self, mode: Any = True) -> None:
        super().__init__()

    def __enter__(self) -> None:
        _NoGrad.depth += 1
        super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        _NoGrad.depth -= 1
        super().__exit__(*raised)

    def __new__(cls, mode: Any = True) -> Any:
        return torch.no_grad()(mode) if callable(mode) else super().__new__(cls)


class _Driver:
    """The methods of a Triton driver that Python code may call."""

    def __init__(self, target: GPUTarget, properties: dict[str, int]) -> None:
        self._target = target
        self.utils = SimpleNamespace(get_device_properties=lambda device: dict(properties))
        timed = _refuse("kernels cannot be timed from forward(): use @triton.autotune with configs")
        self.get_benchmarker = self.get_empty_cache_for_benchmark = self.clear_cache = timed

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None: ...

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return CUDA

    def get_device_interface(self) -> Any:
        return torch.cuda

    def is_active(self) -> bool:
        return True


def install(arch: str) -> GPUTarget:
    """Make the first listed GPU of `arch` appear as device 0. Returns Triton's target for it."""
    import triton

    device = device_for(arch)
    if device is None:
        raise ValueError(f"no GPU of architecture {arch} is known")
    number = arch_number(arch)
    properties = SimpleNamespace(
        name=device.name,
        major=number // 10,
        minor=number % 10,
        multi_processor_count=device.sm_count,
        total_memory=device.memory_gib << 30,
        shared_memory_per_block=49_152,
        shared_memory_per_block_optin=device.shared_bytes,
        shared_memory_per_multiprocessor=device.shared_bytes + 1024,
        L2_cache_size=device.l2_mib << 20,
        warp_size=32,
        regs_per_multiprocessor=65_536,
        max_threads_per_multi_processor=1536 if number in (86, 89) else 2048,
    )
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None, wait_stream=lambda other: None, device=CUDA)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "ipc_collect": lambda: None,
        "set_per_process_memory_fraction": lambda fraction, device=None: None,
        # forward is called in both ways, and must do the same
        "is_current_stream_capturing": lambda: _NoGrad.depth > 0,
        "get_device_properties": lambda device=None: properties,
        "get_device_name": lambda device=None: device_name,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "is_bf16_supported": lambda including_emulation=True: number >= 80,
        "current_stream": lambda device=None: stream,
        "default_stream": lambda device=None: stream,
        "mem_get_info": lambda device=None: (properties.total_memory, properties.total_memory),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "device": lambda device=None: contextlib.nullcontext(),
        "device_of": lambda tensor=None: contextlib.nullcontext(),
        "_DeviceGuard": lambda index: contextlib.nullcontext(),
    }
    device_name = device.name
    answers |= {name: _refuse(sentence) for name, sentence in REFUSED.items()}
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)
    torch.version.cuda = torch.version.cuda or CUDA_VERSION
    torch.backends.cuda.is_built = torch.backends.cudnn.is_available = lambda: True
    torch.backends.cudnn.version = lambda: CUDNN_VERSION
    # recurrent layers lay their weights out anew if cuDNN takes them, and that starts the driver
    torch.backends.cudnn.is_acceptable = lambda tensor: False
    for name in ("range_push", "range_pop", "range_start", "range_end", "mark"):  # marks for a profiler
        setattr(torch.cuda.nvtx, name, lambda *_, **__: 0)
    torch.is_inference_mode_enabled = lambda: _NoGrad.depth > 0  # pyright: ignore[reportPrivateImportUsage]
    torch.inference_mode = _NoGrad  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
    torch.compile = _RefusedOnUse("torch.compile is not an authored kernel: write the fusion in Triton")  # pyright: ignore[reportAttributeAccessIssue]
    torch.jit.script = _RefusedOnUse(
        "TorchScript is no authored kernel: write the fusion in Triton, and helpers as plain functions"
    )  # pyright: ignore[reportAttributeAccessIssue]
    torch.autocast = _NoAutocast  # pyright: ignore[reportAttributeAccessIssue, reportPrivateImportUsage]
    torch.cuda.amp.autocast = torch.amp.autocast = _NoAutocast  # pyright: ignore[reportAttributeAccessIssue]
    for name in ("set_autocast_enabled", "set_autocast_cpu_enabled"):
        set_autocast = _autocast_setter()
        setattr(torch, name, set_autocast)
        setattr(torch._C, name, set_autocast)
    for name in ("Stream", "Event"):  # of any accelerator; torch derives classes of its own from these
        setattr(torch, name, type(name, (), {"__new__": answers[name]}))
    torch.accelerator.set_stream = answers["set_stream"]
    of_any = ("is_available", "device_count", "synchronize", "empty_cache", "current_stream")
    accelerator: dict[str, Any] = {
        **{name: answers[name] for name in of_any},
        "current_accelerator": lambda check_available=False: torch.device("cuda"),
        "device_index": lambda device=None: contextlib.nullcontext(),
        **dict.fromkeys(("current_device_index", "current_device_idx"), answers["current_device"]),
        **dict.fromkeys(("set_device_index", "set_device_idx"), answers["set_device"]),
    }
    for name, answer in accelerator.items():
        setattr(torch.accelerator, name, answer)
    module_of = torch.get_device_module
    torch.get_device_module = lambda device=None: module_of("cuda" if device is None else device)
    torch.Tensor.record_stream = lambda self, s: None  # a note to the allocator  # pyright: ignore[reportAttributeAccessIssue]
    answer_generated_code()
    custom_ops.install()
    threading.Thread.start = _refuse("threads are not traced: call things in order")
    target = GPUTarget("cuda", number, 32)
    table = {
        "max_shared_mem": device.shared_bytes,
        "multiprocessor_count": device.sm_count,
        "max_num_regs": 65_536,
        "warpSize": 32,
        "sm_clock_rate": 1_500_000,
        "mem_clock_rate": 2_600_000,
        "mem_bus_width": 5120,
    }
    set_driver(_Driver(target, table))
    # tensor descriptors made in a kernel need scratch memory, which replay provides
    triton.set_allocator = lambda allocator: None
    return target
