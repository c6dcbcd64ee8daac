"""What a module must leave alone: clocks and lots in forward, work for later, and the modules of others.

A plan shows what one forward did. A module that decides by the calendar, that sets an alarm, or that replaces
`torch.allclose` is right in the trace and wrong in use. A candidate could undo what is installed here: this keeps honest
verdicts honest, and raises the price of others. Only for the trace child's process.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from kernrl.verifier.base import compat
from kernrl.verifier.trace.recorder import Untraceable

_ASKED = {
    "time": "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time process_time_ns localtime gmtime"
    " ctime strftime",
    "random": "random randint randrange uniform choice choices sample shuffle gauss getrandbits betavariate expovariate",
    "os": "getpid getppid urandom getenv times getloadavg",
    "uuid": "uuid1 uuid4",
    "torch.cuda": "memory_allocated memory_reserved max_memory_allocated max_memory_reserved memory_stats memory_snapshot",
    "weakref": "finalize",
}
"""Functions that forward may not call, by module."""

_LATER = {"signal": "signal setitimer alarm", "_thread": "start_new_thread", "sys": "settrace setprofile"}
"""Functions that nothing of a candidate may call."""

_FOREIGN = (
    *("builtins", "time", "random", "os", "math", "inspect", "gc", "statistics", "numpy", "numpy.testing"),
    *("torch", "torch.nn", "torch.nn.functional", "torch.nn.modules.module", "torch.nn.parameter", "torch.nn.init"),
    *("torch.cuda", "torch.testing", "torch.autograd", "torch.utils", "torch.linalg", "torch.overrides", "torch.backends"),
    *("triton", "triton.testing", "triton.language", "triton.language.core", "triton.language.math"),
    *("triton.language.standard", "triton.runtime", "triton.runtime.jit", "triton.runtime.autotuner", "triton.compiler"),
)
_CLASSES = ("torch:Tensor", "torch.nn:Module", "torch.nn:Linear", "triton.runtime.jit:JITFunction", "torch.cuda:Event")
_HOOKS = tuple(f"_global_{name}_hooks" for name in ("forward", "forward_pre", "backward", "parameter_registration"))

_in_forward = False
_before: dict[str, tuple[Mapping[str, Any], dict[str, Any]]] = {}
"""Names of each module and class: as they are now, and as they were."""
_knobs: dict[str, Any] = {}
"""Triton's settings as they were."""
_inherited: dict[str, frozenset[str]] = {}


@contextlib.contextmanager
def forward() -> Iterator[None]:
    """Within, a candidate may not ask what is not the same in every call."""
    global _in_forward
    before, _in_forward = _in_forward, True
    try:
        yield
    finally:
        _in_forward = before


def install() -> None:
    """Replace the functions of `_ASKED` and `_LATER`, for good, and remember what modules hold. Once, before candidates."""
    for module, names in (*_ASKED.items(), *_LATER.items()):
        found = importlib.import_module(module)
        for name in names.split():
            if not hasattr(getattr(found, name, None), "__wrapped__"):
                setattr(found, name, _guarded(getattr(found, name), f"{module}.{name}", always=module in _LATER))
    _guard_environment()
    _knobs.update(compat.knobs())
    for name in _FOREIGN:
        module = importlib.import_module(name)
        _before[name] = vars(module), dict(vars(module))
    for one in _CLASSES:
        module, _, name = one.partition(":")
        cls = getattr(importlib.import_module(module), name)
        if isinstance(cls, type):
            place = f"{module}.{name}"
            _before[place] = vars(cls), dict(vars(cls))
            _inherited[place] = frozenset(attribute for base in cls.__mro__[1:] for attribute in vars(base))


def check_untouched() -> None:
    """Raise Untraceable if anything that was there before the candidate is replaced, or is hooked."""
    for place, (now, before) in _before.items():
        for name, value in now.items():
            # a new name of a class may hide one that it inherits
            if value is not before.get(name, value if name not in _inherited.get(place, ()) else None):
                raise Untraceable(f"the code replaces {place}.{name}: leave other modules as they are")
    for name, value in compat.knobs().items() if _knobs else ():
        if value != _knobs.get(name):
            raise Untraceable(f"the code changes triton.knobs.{name}: leave Triton's settings as they are")
    for name in _HOOKS:
        if getattr(torch.nn.modules.module, name, None):
            raise Untraceable("the code hooks every module: leave other modules as they are")
    if gc.callbacks:
        raise Untraceable("the code leaves a callback with Python's garbage collector: do the work in forward()")


def _guarded(function: Callable[..., Any], name: str, *, always: bool) -> Callable[..., Any]:
    @functools.wraps(function, updated=())
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if (always or _in_forward) and _asked_by_candidate():
            raise Untraceable(_sentence(name, always=always))
        return function(*args, **kwargs)

    return guarded


def _sentence(name: str, *, always: bool) -> str:
    if always:
        return f"{name} leaves work for later or for others, which is not traced: call things in order"
    return f"forward() calls {name}: what it does may depend on shapes and arguments, and on no time, lot or process"


def _asked_by_candidate() -> bool:
    """Whether the guarded function was called from a candidate's code, perhaps through the standard library."""
    frame = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            return False
        path = frame.f_code.co_filename
        if path.endswith("candidate.py"):
            return True
        if any(f"/{package}/" in path for package in ("torch", "triton", "kernrl", "numpy")):
            return False
        frame = frame.f_back
    return False


def _guard_environment() -> None:
    environment: Any = type(os.environ)
    if not hasattr(environment.__getitem__, "__wrapped__"):
        environment.__getitem__ = _guarded(environment.__getitem__, "os.environ", always=False)
