"""Launch a Triton kernel for little of the host's time: what Triton works out for every call is kept from the first."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction

_compiled: dict[tuple, Any] = {}


def launch(kernel: Any, programs: int, args: Sequence[Any], constants: dict[str, Any], **options: Any) -> None:
    """Run `programs` programs of `kernel`, whose parameters are `args` in order and then `constants` in order.

    Triton compiles a kernel anew for each set of dtypes, of pointers that are multiples of 16, and of integers that are 1 or
    multiples of 16. The key here tells those apart, so that what the first call compiled is right for every later one.
    """
    if not isinstance(kernel, JITFunction):  # the interpreter
        kernel[(programs,)](*args, **constants, **options)
        return
    key, values = [id(kernel), torch.cuda.current_device(), *constants.values(), *options.values()], []
    for arg in args:
        if isinstance(arg, Tensor):
            address = arg.data_ptr()
            key.append((arg.dtype, address % 16 == 0))
            values.append(address)
        else:
            values.append(arg)
            if type(arg) is int:
                key.append((arg == 1, arg % 16 == 0, arg >> 31))
            elif arg is None:
                key.append(None)
    compiled = _compiled.get(key := tuple(key))
    if compiled is None:
        _compiled[key] = kernel[(programs,)](*args, **constants, **options)
    else:
        compiled[(programs, 1, 1)](*values, *constants.values())


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors the GPU has; 1 on a CPU, where the interpreter runs programs one after another."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


_scratch: dict[tuple, tuple[Tensor, ...]] = {}


def scratch(name: str, make: Callable[[torch.device], tuple[Tensor, ...]], device: torch.device) -> tuple[Tensor, ...]:
    """What `make` made for the present stream of `device`, kept for later calls, which find what earlier ones left there."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return make(device)  # the replay of a graph must not depend on calls outside it
    key = name, device, torch.cuda.current_stream(device).cuda_stream
    if key not in _scratch:
        _scratch[key] = make(device)
    return _scratch[key]
