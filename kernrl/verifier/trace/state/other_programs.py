"""A module as a part of another program: copied, of a subclass, hooked, trained, its parameters computed from others.

Users do all of this, and `forward` has to do the same afterwards.
"""

from __future__ import annotations

import contextlib
import copy
import copyreg
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from kernrl.verifier.base.compat import no_dispatch, no_torch_functions
from kernrl.verifier.plan import checks
from kernrl.verifier.plan.plan import KernelSource
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.state.repeat_calls import Call, kernels_alone
from kernrl.verifier.trace.untraceable import Untraceable

IN_A_PROGRAM = "as part of a larger program (copied, subclassed, hooked, with parameters computed from others)"


@contextlib.contextmanager
def trained(model: torch.nn.Module) -> Iterator[None]:
    """Within, parameters have gradients, as after a step of training."""
    with no_torch_functions(), no_dispatch():
        without = [p for p in model.parameters() if p.is_leaf and p.grad is None and (p.is_floating_point() or p.is_complex())]
        for parameter in without:
            parameter.grad = torch.empty_like(parameter)
    try:
        yield
    finally:
        with no_torch_functions():
            for parameter in without:
                parameter.grad = None


def copies(model: torch.nn.Module, recorder: Recorder) -> Iterator[tuple[torch.nn.Module, dict[int, int]]]:
    """A copy of a module, and the storages of its parameters and buffers with those that they are copies of. None at all where
    it cannot be copied: a kernel, a lock or a result of autograd cannot."""
    recorder.copies = {}
    try:
        with no_dispatch(), _slot_names_forgotten():
            made = copy.deepcopy(model)
    except Exception:
        return
    finally:
        recorder.copies = None
    numbers = {}
    with no_torch_functions():
        own = dict(_state(made))
        for name, tensor in _state(model):
            if name not in own:
                continue
            number = recorder.ref(tensor).storage
            numbers[recorder.adopt(own[name], source=recorder.storages[number].source)] = number
    recorder.statistics |= {mine for mine, its in numbers.items() if its in recorder.statistics}
    yield made, numbers


def _state(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()


@contextlib.contextmanager
def _slot_names_forgotten() -> Iterator[None]:
    """Within, copying leaves on no class what Python knows of its slots: libraries have to be as they were."""
    find: Any = vars(copyreg)["_slotnames"]

    def found(cls: type) -> Any:
        known = "__slotnames__" in vars(cls)
        names = find(cls)
        if not known and "__slotnames__" in vars(cls):
            type.__delattr__(cls, "__slotnames__")
        return names

    setattr(copyreg, "_slotnames", found)  # noqa: B010
    try:
        yield
    finally:
        setattr(copyreg, "_slotnames", find)  # noqa: B010


def check_own_state(call: Call, copies: Mapping[int, int], recorder: Recorder, kernels: Sequence[KernelSource]) -> None:
    """Raise Untraceable if the call of a copy works on parameters or buffers of the original. `copies`: as above."""
    plan, originals = kernels_alone(kernels), set(copies.values()) - copies.keys()
    for node in call.nodes:
        if used := (checks.read(node, plan) | checks.written(node, plan)) & originals:
            name = recorder.storages[min(used)].source or "buffers"
            raise Untraceable(
                f"a copy of the module (copy.deepcopy) computes from the original's {name}: read parameters and buffers from "
                "self in forward(), and keep no function that refers to self"
            )


def put_in_a_program(model: torch.nn.Module, recorder: Recorder) -> None:
    """Make a module that nothing else needs one of a subclass, hooked, whose parameters are computed from others."""
    cls: Any = type(model)
    model.__class__ = type(cls)(cls.__name__, (cls,), {"__module__": cls.__module__})
    for hooks in (model._forward_hooks, model._forward_pre_hooks):
        hooks[-1] = _does_nothing
    with no_torch_functions(), no_dispatch(), torch.enable_grad():
        for part in model.modules():
            for name, parameter in part._parameters.items():
                if type(parameter) is torch.nn.Parameter:  # one of a class of its own stays
                    view: Any = parameter.view_as(parameter)
                    part._parameters[name] = view
                    recorder.parameters.add(id(view))


def _does_nothing(*_: Any) -> None:
    pass
