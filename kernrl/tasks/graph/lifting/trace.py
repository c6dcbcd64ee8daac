"""Trace a module under fake tensors: sizes without numbers, so that a task of 8 GiB takes no memory.

The task's constructor and `get_inputs` run as they do everywhere else. Tensors of up to `SMALL` elements are real while
they run, so that numbers may be read out of them (`torch.linspace(0, rate, depth)[i].item()`); larger ones are fake.
"""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.export._trace  # two seconds of imports, here and not in the first lift; a fork server preloads this module
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kernrl.tasks.graph.lifting.raising_checks import checks_passed

SMALL = 4096
"""Most elements of a tensor that is made for real."""


EXPORTING = threading.RLock()
"""Held while a module is made and exported: torch.export and `quiet` change globals, and a second one beside breaks both."""

BY_COUNT = -1.0
"""Stands for a batch norm's momentum of None while it is traced: 1 / the number of calls."""


class MostlyFake(TorchDispatchMode):
    """Makes small tensors for real and large ones fake."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.random: dict[int, Tensor] = {}
        """Real tensors that were drawn, or made of drawn ones, by id: their numbers are nobody's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        if any(isinstance(t, FakeTensor) for t in given):
            with self.fake:
                return func(*args, **kwargs)
        if not func._schema.is_mutable:
            planned = self._planned(func, args, kwargs)
            if any(isinstance(t, Tensor) and t.numel() > SMALL for t in pytree.tree_leaves(planned)):
                return planned
        out = func(*args, **kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags or any(id(t) in self.random for t in given):
            self.random.update((id(t), t) for t in pytree.tree_leaves(out) if isinstance(t, Tensor))
        return out

    def _planned(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What the call gives, fake; None where that depends on numbers."""
        try:
            with self.fake:
                return func(*self.faked(args), **self.faked(kwargs))
        except RuntimeError:
            return None  # the call itself says what is wrong, if anything is

    def faked(self, item: Any) -> Any:
        """`item` with every tensor in it fake."""
        return pytree.tree_map_only(Tensor, self.fake.from_tensor, item)


@dataclass(frozen=True, slots=True)
class Traced:
    """A module, exported."""

    program: torch.export.ExportedProgram
    args: tuple[Any, ...]
    """What `forward` was given; tensors are fake."""
    numbers: dict[str, Tensor]
    """Path → buffer or plain tensor attribute of one element, whose number the constructor settled."""


def trace(module: nn.Module, args: Sequence[Any], mode: MostlyFake) -> Traced:
    """Export a module that was made under `mode`, or for real, at these arguments; its tensors become fake.

    Raises whatever the module raises.
    """
    numbers = _all_fake(module, mode)
    given = tuple(mode.faked(list(args)))
    changed = _attributes_held(module), _forward_alone(), _without_code(), checks_passed(), quiet(), torch.no_grad()
    with EXPORTING, contextlib.ExitStack() as stack:
        for change in changed:
            stack.enter_context(change)
        program = torch.export.export(module, given, strict=False)
    return Traced(program, given, numbers)


def _all_fake(module: nn.Module, mode: MostlyFake) -> dict[str, Tensor]:
    """Put a fake tensor in the place of every real one; returns the real ones of a single element that are no parameter."""
    numbers: dict[str, Tensor] = {}
    seen: dict[int, Tensor] = {}
    for prefix, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._NormBase) and part.momentum is None:
            part.momentum = BY_COUNT  # or it would read its counter
        for held in (part._parameters, part._buffers, part.__dict__):
            for name, tensor in list(held.items()):
                if not isinstance(tensor, Tensor) or isinstance(tensor, FakeTensor):
                    continue
                if held is not part._parameters and tensor.numel() == 1 and id(tensor) not in mode.random:
                    numbers[f"{prefix}.{name}".lstrip(".")] = tensor.detach()
                if id(tensor) not in seen:
                    fake = mode.fake.from_tensor(tensor)
                    is_parameter = isinstance(tensor, nn.Parameter) and not isinstance(fake, nn.Parameter)
                    seen[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
                held[name] = seen[id(tensor)]  # pyright: ignore[reportArgumentType]
    return numbers


@contextlib.contextmanager
def _attributes_held(module: nn.Module) -> Iterator[None]:
    """Have plain tensor attributes be buffers: torch.export makes others of those, and mixes them up with ours."""
    held = [
        (part, name, tensor)
        for part in module.modules()
        for name, tensor in part.__dict__.items()
        if isinstance(tensor, Tensor) and not hasattr(type(part), name)
    ]
    for part, name, tensor in held:
        del part.__dict__[name]
        part._buffers[name] = tensor
    try:
        yield
    finally:
        for part, name, tensor in held:
            part._buffers.pop(name, None)
            part.__dict__[name] = tensor


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No warnings, and nothing logged or printed about what cannot be traced: what matters is raised."""
    names = ("torch._subclasses.fake_tensor", "torch.fx", "torch.export", "torch._export")
    loggers = [logging.getLogger(name) for name in names]
    with EXPORTING:  # of two threads in here, the later one would leave behind what the earlier one changed
        levels = [log.level for log in loggers]
        if min(levels) > logging.CRITICAL:  # in another `quiet`; setting a level takes long
            yield
            return
        for log in loggers:
            log.setLevel(logging.CRITICAL + 1)
        try:
            with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
                warnings.simplefilter("ignore")
                yield
        finally:
            for log, level in zip(loggers, levels, strict=True):
                log.setLevel(level)


@contextlib.contextmanager
def as_python() -> Iterator[None]:
    """Leave what TorchScript or Dynamo would compile as the Python that it is: their programs take no fake tensors."""

    def compiled(code: Any = None, *_: Any, **__: Any) -> Any:
        return compiled if code is None else code

    with EXPORTING:
        kept = torch.jit.script, torch.jit.trace, torch.compile
        torch.jit.script = torch.jit.trace = torch.compile = compiled  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            torch.jit.script, torch.jit.trace, torch.compile = kept


@contextlib.contextmanager
def conversions() -> Iterator[None]:
    """Let a constructor convert parameters that are fake (`.half()`): torch would swap them, and something else holds them."""
    apply = nn.Module._apply

    def convert(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        if not any(isinstance(p, FakeTensor) for p in module._parameters.values()):
            return apply(module, fn, recurse)
        for child in module.children() if recurse else ():
            child._apply(fn)
        for parameter in module.parameters(recurse=False):
            parameter.data = fn(parameter.detach())
        module._buffers.update({name: fn(b) for name, b in module._buffers.items() if b is not None})
        return module

    with EXPORTING:
        nn.Module._apply = convert  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            nn.Module._apply = apply


class _Context:
    """What an autograd function is given to note things for its backward, which is never called."""

    def __init__(self, count: int) -> None:
        self.needs_input_grad = (False,) * count
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None: ...

    def mark_dirty(self, *tensors: Any) -> None: ...

    def mark_non_differentiable(self, *tensors: Any) -> None: ...

    def set_materialize_grads(self, value: bool) -> None: ...


@contextlib.contextmanager
def _forward_alone() -> Iterator[None]:
    """Have autograd functions of the module's own be what their forward computes: nobody asks for gradients."""

    def forward(cls: Any, *args: Any, **kwargs: Any) -> Any:
        apart = cls.setup_context is not torch.autograd.Function.setup_context
        return cls.forward(*args, **kwargs) if apart else cls.forward(_Context(len(args)), *args, **kwargs)

    kept = torch.autograd.Function.__dict__["apply"]
    torch.autograd.Function.apply = classmethod(forward)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.autograd.Function.apply = kept


@contextlib.contextmanager
def _without_code() -> Iterator[None]:
    """Have fx write no Python for its graphs in this thread: an export does that six times, and nobody runs it."""
    ours, recompile = threading.get_ident(), torch.fx.GraphModule.recompile

    def skip(module: torch.fx.GraphModule) -> Any:
        return None if threading.get_ident() == ours else recompile(module)

    torch.fx.GraphModule.recompile = skip  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.fx.GraphModule.recompile = recompile
