"""Launch a Triton kernel for little of the host's time: what Triton works out for every call is kept from the first."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from triton.runtime.jit import JITFunction


class Variant:
    """A kernel with its compile-time constants and options; make one for each set of them, and keep it."""

    def __init__(self, kernel: Any, constants: dict[str, Any], **options: Any):
        self.kernel, self.constants, self.options = kernel, constants, options
        self._values = tuple(constants.values())
        self._compiled: dict[tuple, Any] = {}

    def __call__(
        self, programs: int, tensors: Sequence[Tensor | None], integers: Sequence[int] = (), floats: Sequence[float] = ()
    ) -> None:
        """Run `programs` programs. The kernel's parameters are the tensors' pointers, the integers, the floats and the
        constants, each in order.

        Triton compiles anew for each set of dtypes, and for integers that are 1 or multiples of 16; the key tells those
        apart. It does so for pointers that are no multiples of 16, too: they go the long way.
        """
        addresses = [0 if x is None else x.data_ptr() for x in tensors]
        low_bits = 0
        for address in addresses:
            low_bits |= address
        if low_bits & 15 or not isinstance(self.kernel, JITFunction):  # or the interpreter
            self.kernel[(programs,)](*tensors, *integers, *floats, **self.constants, **self.options)
            return
        device = torch.cuda.current_device()
        key = (device, *[None if x is None else x.dtype for x in tensors], *[(i == 1, i & 15 == 0, i >> 31) for i in integers])
        compiled = self._compiled.get(key)
        if compiled is None:
            self._compiled[key] = self.kernel[(programs,)](*tensors, *integers, *floats, **self.constants, **self.options)
            return
        compiled.run(  # as Triton's own launch calls it, hooks left out
            programs, 1, 1, torch._C._cuda_getCurrentRawStream(device), compiled.function, compiled.packed_metadata,
            None, None, None, *addresses, *integers, *floats, *self._values,
        )  # fmt: skip


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors the GPU has; 1 on a CPU, where the interpreter runs programs one after another."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


_scratch: dict[tuple, tuple[Tensor, ...]] = {}


def scratch(make: Callable[[torch.device], tuple[Tensor, ...]], device: torch.device, part: int = 0) -> tuple[Tensor, ...]:
    """What `make` made for the present stream of `device`, kept for later calls, which find what earlier ones left there."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return make(device)  # the replay of a graph must not depend on calls outside it
    key = make, part, device.index, torch._C._cuda_getCurrentRawStream(device.index)
    if key not in _scratch:
        _scratch[key] = make(device)
    return _scratch[key]
