"""What a submodule is called with: its arguments in one order, however they are spelt, each tensor without its numbers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

PLAIN = (type(None), bool, int, float, str, torch.dtype, torch.device, torch.Size, slice)
"""Arguments besides tensors that a part may be checked for."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A tensor without its numbers."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> Spec:
        """The description of a tensor."""
        return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)

    def make(self) -> Tensor:
        """A tensor of this description, with zeros in it."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device).zero_()

    def fits(self, tensor: Tensor) -> bool:
        """Whether a tensor has this shape and dtype, wherever it lies."""
        return tuple(tensor.shape) == self.shape and tensor.dtype == self.dtype

    @property
    def channels_last(self) -> bool:
        """Whether the channels of an image, or of a volume, are its innermost axis."""
        order = sorted(range(len(self.shape)), key=lambda axis: -self.stride[axis])
        wide = len(self.shape) in (4, 5) and self.shape[1] > 1 and any(size > 1 for size in self.shape[2:])
        return wide and order[-1] == 1 and self.stride[1] == 1


@dataclass(frozen=True, eq=False)
class Call:
    """One way in which a module was called."""

    given: tuple[Any, ...]
    """The leaves of its arguments, tensors as Spec."""
    form: pytree.TreeSpec
    """Of (positional arguments, arguments by name)."""
    result: pytree.TreeSpec
    """Of what it gave back."""
    nothing: tuple[int, ...] = ()
    """Places of None among the leaves of what it gave back: of attention without its weights, say."""

    def packed(self, out: Any) -> Any:
        """Tensors in the form of what the module gave back, such as a named tuple."""
        tensors = iter(pytree.tree_leaves(out))
        leaves = [None if place in self.nothing else next(tensors) for place in range(self.result.num_leaves)]
        return pytree.tree_unflatten(leaves, self.result)

    def __deepcopy__(self, memo: dict[int, Any]) -> Call:
        return self  # nothing in it changes

    @property
    def tensors(self) -> list[int]:
        """Places of the tensors among `given`."""
        return [n for n, item in enumerate(self.given) if isinstance(item, Spec)]

    @property
    def zeros(self) -> list[Tensor]:
        """Tensors like those it was given."""
        return [self.given[n].make() for n in self.tensors]

    @property
    def problem(self) -> str:
        """Why a part called in this way cannot be optimised; '' where it can."""
        odd = next((item for item in self.given if not isinstance(item, (Spec, *PLAIN))), None)
        if odd is not None:
            return f"it is given a {type(odd).__name__}, whose content cannot be checked"
        if any(item.channels_last for item in self.given if isinstance(item, Spec)):
            return "its input is channels-last, and parts are timed with rows innermost"
        return ""


def flatten(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], pytree.TreeSpec]:
    """(leaves, form) of arguments."""
    leaves, form = pytree.tree_flatten(arguments)
    return tuple(leaves), form


@dataclass(frozen=True)
class Parameters:
    """What a `forward` may be given, read once: a signature takes longer to look at than some kernels to run."""

    names: tuple[str, ...]
    """Of those that may be given by position."""
    defaults: dict[str, Any]
    by_name: dict[str, Any]
    """Defaults of those that are given by name alone."""

    @classmethod
    def of(cls, kind: type[nn.Module]) -> Parameters:
        """The parameters of a class's `forward`, without `self`."""
        found = list(inspect.signature(kind.forward).parameters.values())[1:]
        plain = [p for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        by_name = {p.name: p.default for p in found if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
        return cls(tuple(p.name for p in plain), {p.name: p.default for p in plain if p.default is not p.empty}, by_name)

    def ordered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call's arguments in one order: by position as far as can be, the rest by name.

        Those that are defaults are left out: a decorator of `forward` may give by name what it does not see given.

        Raises:
            TypeError: An argument is missing.
        """
        if len(args) > len(self.names):
            return tuple(args), {name: kwargs[name] for name in sorted(kwargs)}
        named = {**dict(zip(self.names, args, strict=False)), **kwargs}
        for defaults in (self.defaults, self.by_name):
            for name, default in defaults.items():
                if name in named and _same(named[name], default):
                    del named[name]
        positional = list[Any]()
        for name in self.names:
            if name in named:
                positional.append(named.pop(name))
            elif name in self.defaults:
                break
            else:
                raise TypeError(f"forward needs {name!r}")
        return tuple(positional), {name: named[name] for name in sorted(named)}


def _same(value: Any, default: Any) -> bool:
    return value is default or (type(value) is type(default) and isinstance(value, PLAIN) and value == default)


@contextmanager
def of_tensors(module: nn.Module, call: Call) -> Iterator[None]:
    """Within, the module's `forward` takes the call's tensors alone, by position."""
    own = type(module).forward.__get__(module)

    def forward(*tensors: Tensor) -> Any:
        leaves = list(call.given)
        for place, tensor in zip(call.tensors, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, call.form)
        return own(*args, **kwargs)

    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
