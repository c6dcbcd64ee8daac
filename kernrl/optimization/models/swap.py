"""A submodule with another forward: the verified one where it was checked, the module's own everywhere else.

Parameters, buffers and their names stay, so a `state_dict` is what it was. The fast forward runs only for tensors on a GPU
with exactly the shapes and dtypes that were checked. Whichever of the two runs, a call that asks for gradients gets an output
whose `backward` says that this is for inference, and training mode raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernrl.optimization.models.calls import Call, Parameters, Spec, flatten
from kernrl.optimization.module_task import tensors_in

NO_GRADIENTS = (
    "this model was made by kernrl.optimize, which is for inference alone: use the original module to train, or run this one "
    "under torch.no_grad()"
)


class _InferenceOnly(torch.autograd.Function):
    """Gives its second argument back, and refuses to go backward."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, out: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(NO_GRADIENTS)


class FastForward:
    """The `forward` of a swapped submodule."""

    def __init__(
        self, module: nn.Module, function: Callable[..., Any], call: Call, places: list[int], devices: tuple[str, ...]
    ):
        """
        Args:
            function: `ModelNew.forward`, unbound: its `self` is the module, whose parameters have the same paths.
            call: The arguments that it was checked with, tensors as Spec.
            places: Of the function's inputs, in order, among the tensors of the call.
            devices: Types of device on which the function runs.
        """
        self.module, self.function, self.call = module, function, call
        self.parameters = Parameters.of(type(module))
        self.bare = call.result.is_leaf()  # most modules return one tensor
        _, named = pytree.tree_unflatten(call.given, call.form)
        self.by_place = not named
        self.places, self.devices = [call.tensors[place] for place in places], devices

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.module.training:
            raise RuntimeError(NO_GRADIENTS.replace("under torch.no_grad()", "in eval mode"))
        if not torch.is_grad_enabled():
            return self.computed(args, kwargs)
        anchor = next((t for t in (*tensors_in((args, kwargs)), *self.module.parameters()) if t.requires_grad), None)
        with torch.no_grad():
            out = self.computed(args, kwargs)
        if anchor is None:
            return out
        return pytree.tree_map_only(Tensor, lambda t: _InferenceOnly.apply(anchor, t) if t.is_floating_point() else t, out)

    def computed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output, by the fast forward where the arguments are those that were checked."""
        given = self.given(args, kwargs)
        if given is None:
            return own_forward(self.module)(*args, **kwargs)
        return self.packed(self.function(self.module, *(given[place].contiguous() for place in self.places)))

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
        """The leaves of a call's arguments; None where they are not like those that were checked."""
        if self.by_place and not kwargs and len(args) == len(self.call.given) and self.fits(args):
            return args  # most calls, and pytrees take longer than some kernels
        try:
            leaves, form = flatten(self.parameters.ordered(args, kwargs))
        except TypeError:
            return None  # the module's own forward says what is wrong
        return leaves if form == self.call.form and self.fits(leaves) else None

    def packed(self, out: Any) -> Any:
        """An output in the module's own form."""
        return out if self.bare else self.call.packed(out)

    def fits(self, leaves: tuple[Any, ...]) -> bool:
        """Whether these leaves are like those that were checked."""
        for mine, checked in zip(leaves, self.call.given, strict=True):
            if isinstance(checked, Spec):
                if not isinstance(mine, Tensor) or mine.device.type not in self.devices or not checked.fits(mine):
                    return False
            elif type(mine) is not type(checked) or mine != checked:
                return False
        return True


def own_forward(module: nn.Module) -> Callable[..., Any]:
    """The forward of the module's class."""
    return type(module).forward.__get__(module)


def swap(module: nn.Module, function: Callable[..., Any], call: Call, places: list[int], devices: tuple[str, ...]) -> None:
    """Give a module another forward, on this instance alone."""
    module.__dict__["forward"] = FastForward(module, function, call, places, devices)


def restore(module: nn.Module) -> FastForward | None:
    """Take the other forward away, and return it."""
    return module.__dict__.pop("forward", None)


def put_back(module: nn.Module, forward: FastForward | None) -> None:
    """Undo `restore`."""
    if forward is not None:
        module.__dict__["forward"] = forward


def is_swapped(module: nn.Module) -> bool:
    """Whether a module has another forward."""
    return isinstance(module.__dict__.get("forward"), FastForward)
