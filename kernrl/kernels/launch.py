"""Launch a Triton kernel for little of the host's time: what Triton works out for every call is kept from the first."""

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable as torch_once_differentiable
from triton.runtime.jit import JITFunction


class Variant:
    """A kernel with its compile-time constants and options; make one for each set of them, and keep it."""

    def __init__(self, kernel: Any, constants: dict[str, Any], **options: Any):
        self.kernel, self.constants, self.options = kernel, constants, options
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
        compiled = self.compiled(device, tensors, integers)
        if compiled is None:
            key = _key(device, tensors, integers)
            self._compiled[key] = self.kernel[(programs,)](*tensors, *integers, *floats, **self.constants, **self.options)
            return
        compiled.run(  # as Triton's own launch calls it, hooks left out
            programs, 1, 1, torch._C._cuda_getCurrentRawStream(device), compiled.function, compiled.packed_metadata,
            None, None, None, *addresses, *integers, *floats, *self.constants.values(),
        )  # fmt: skip

    def compiled(self, device: int, tensors: Sequence[Tensor | None], integers: Sequence[int]) -> Any:
        """What Triton compiled for an earlier call with arguments like these, or None."""
        return self._compiled.get(_key(device, tensors, integers))


def _key(device: int, tensors: Sequence[Tensor | None], integers: Sequence[int]) -> tuple:
    return (device, *[None if x is None else x.dtype for x in tensors], *[(i == 1, i & 15 == 0, i >> 31) for i in integers])


class Launch:
    """A variant with everything but its tensors, whose dtypes and device stay the same: what is left of a call costs least."""

    def __init__(self, variant: Variant, programs: int, integers: Sequence[int] = (), floats: Sequence[float] = ()):
        self.variant, self.programs, self.integers, self.floats = variant, programs, integers, floats
        self._head: tuple = ()
        self._tail = *integers, *floats, *variant.constants.values()
        self._device = 0
        self._run: Any = None

    def __call__(self, *tensors: Tensor | None) -> None:
        addresses = [0 if x is None else x.data_ptr() for x in tensors]
        run = None if functools.reduce(operator.or_, addresses) & 15 else self._run or self._find(tensors)
        if run is None:
            self.variant(self.programs, tensors, self.integers, self.floats)
        else:
            stream = torch._C._cuda_getCurrentRawStream(self._device)
            run(self.programs, 1, 1, stream, *self._head, *addresses, *self._tail)

    def _find(self, tensors: Sequence[Tensor | None]) -> Any:
        """What runs the variant for tensors like these, if Triton compiled it in an earlier call."""
        if not isinstance(self.variant.kernel, JITFunction):
            return None  # the interpreter
        self._device = torch.cuda.current_device()
        compiled = self.variant.compiled(self._device, tensors, self.integers)
        if compiled is None:
            return None
        self._head = compiled.function, compiled.packed_metadata, None, None, None
        self._run = compiled.run
        return self._run


def without_functorch(function: type[torch.autograd.Function]) -> Callable:
    """`function.apply` but for what torch does in Python for functorch, which cannot follow a launch anyway."""
    return super(torch.autograd.Function, function).apply  # pyright: ignore[reportAttributeAccessIssue]


def once_differentiable(backward: Callable) -> Callable:
    """torch's decorator of this name, whose cost is left out where no graph of the backward pass is asked for."""
    guarded = torch_once_differentiable(backward)

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: Tensor | None) -> Any:
        return (guarded if torch.is_grad_enabled() else backward)(ctx, *grads)

    return wrapper


@functools.cache
def multiprocessors(device: torch.device) -> int:
    """How many multiprocessors the GPU has; 1 on a CPU, where the interpreter runs programs one after another."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


_scratch: dict[tuple, tuple[Tensor, ...]] = {}


def scratch(make: Callable[[torch.device], tuple[Tensor, ...]], device: torch.device, part: int = 0) -> tuple[Tensor, ...]:
    """What `make` made for the present stream of `device`, kept for later calls, which find what earlier ones left there."""
    index = device.index
    if device.type != "cuda" or torch._C._cuda_isCurrentStreamCapturing():
        return make(device)  # the replay of a graph must not depend on calls outside it
    key = make, part, index, torch._C._cuda_getCurrentRawStream(index)
    kept = _scratch.get(key)
    if kept is None:
        kept = _scratch[key] = make(device)
    return kept
