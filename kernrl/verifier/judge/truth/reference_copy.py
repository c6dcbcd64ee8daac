"""A reference in another dtype, run whole or slice by slice."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.verifier.base.compat import storage_key
from kernrl.verifier.base.nested import flatten, rebuild
from kernrl.verifier.base.precision import as_pairs, cast_module, widened
from kernrl.verifier.judge.inputs import HeldState, TaskInputs, bind
from kernrl.verifier.judge.truth.slices import Slices, StateWatch

log = logging.getLogger(__name__)


class ReferenceCopy:
    """The reference in another dtype, with its own parameters and buffers."""

    def __init__(self, inputs: TaskInputs, dtype: torch.dtype):
        self._inputs, self._dtype = inputs, dtype
        self._module = cast_module(copy.deepcopy(inputs.module), dtype)
        # copies also where the dtype is the same: this run must not move what eager runs on
        self._state = {k: self._in_dtype(v).clone() for k, v in inputs.state.items()}
        bind(self._module, self._state)
        self._held = HeldState(self._module, self._state)

    def run(self, change: Callable[[Tensor], Tensor] | None, mode: TorchDispatchMode, *, wide: bool = True) -> list[Tensor]:
        """Outputs on the inputs' current numbers, after `change`, if any, has been applied to each tensor that is not held;
        float64 if `wide`, and complex ones as pairs."""
        self._take_state(change)
        leaves, held = flatten(self._inputs.arguments), {id(self._inputs.inputs[i]) for i in self._inputs.held}
        outputs = self._call([self._leaf(x, None if id(x) in held else change) for x in leaves], mode, wide=wide)
        return outputs + [self._state[name].clone() for name in self._inputs.statistics]

    def run_in_slices(self, slices: Slices, mode: TorchDispatchMode, goes_on: Callable[[], bool]) -> list[Tensor] | None:
        """The outputs of `run` without a change, made slice by slice.

        None where the module does not take a slice or keeps something for the next one, or `goes_on` says no after one.
        """
        self._take_state(None)
        leaves = flatten(self._inputs.arguments)
        watch, outputs = StateWatch(self._module), list[Tensor]()
        for start, length in slices:
            try:
                with watch:
                    made = self._call([self._leaf(x, None) for x in slices.cut(leaves, start, length)], mode)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a reference does when it is given fewer samples
                log.info("a float64 reference runs whole: %s", error)
                return None
            if watch.changed() or not goes_on() or not slices.put(made, outputs, start, length):
                return None
            del made
        return outputs + [self._state[name].clone() for name in self._inputs.statistics]

    def _take_state(self, change: Callable[[Tensor], Tensor] | None) -> None:
        for name, tensor in self._state.items():
            tensor.copy_(change(self._inputs.state[name]) if change else self._inputs.state[name])

    def _call(self, leaves: list[Any], mode: TorchDispatchMode, *, wide: bool = True) -> list[Tensor]:
        with torch.no_grad(), default_dtype(self._dtype, self._inputs.device), mode:
            found = flatten(self._module(*rebuild(self._inputs.arguments, leaves)))
        self._held.settle()
        # the next draw overwrites state, and inputs that this reference's dtype leaves as they are
        kept = {storage_key(x) for x in (*self._state.values(), *self._inputs.inputs)}
        made = [as_pairs(_own(y.detach(), kept)) for y in found if isinstance(y, Tensor)]
        return [widened(y) if wide else y for y in made]

    def _leaf(self, x: Any, change: Callable[[Tensor], Tensor] | None) -> Any:
        if not isinstance(x, Tensor):
            return x
        return change(x) if change else self._in_dtype(x)

    def _in_dtype(self, x: Tensor) -> Tensor:
        """A floating tensor in this reference's dtype, complex ones as wide; others as they are."""
        if x.is_complex():
            return x.to(torch.complex128) if self._dtype == torch.float64 else x
        return x.to(self._dtype) if x.is_floating_point() else x


def _own(tensor: Tensor, kept: set[int]) -> Tensor:
    return tensor.clone() if storage_key(tensor) in kept else tensor


@contextmanager
def default_dtype(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Within, torch's default dtype is `dtype`, so that a reference's `torch.zeros(n)` is as wide as the rest.

    On the meta device, for this thread alone: a reference is rehearsed in the caller's process, whose other threads go on.
    """
    if device.type == "meta":
        with _MadeAs(dtype):
            yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _MadeAs(TorchFunctionMode):
    """Gives this dtype to tensors that are made of nothing and would have the default one."""

    _MAKERS: ClassVar = {
        *(torch.zeros, torch.ones, torch.empty, torch.full, torch.tensor, torch.rand, torch.randn, torch.arange, torch.eye),
        *(torch.linspace, torch.logspace, torch.hann_window, torch.hamming_window, torch.blackman_window, torch.kaiser_window),
    }

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self._dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        made = func(*args, **(kwargs or {}))
        named = (kwargs or {}).get("dtype") is not None
        return made.to(self._dtype) if func in self._MAKERS and not named and made.dtype == torch.get_default_dtype() else made
