"""`torch.library` in a trace: operators that a candidate registers are plain functions, so that their bodies are traced.

Each is also found where a caller looks for it, `torch.ops.NAMESPACE.NAME`, with or without `.default`. Only for the trace
child's process: `install` replaces public functions for good.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from kernrl.verifier.trace.recorder import Untraceable

_OWN = frozenset(("aten", "prim", "prims", "_c10d_functional", "quantized"))
_ON_CUDA = ("CUDA", "cuda", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "default", "")


class PlainOp:
    """One registered operator."""

    def __init__(self, name: str, function: Callable[..., Any] | None = None, defaults: dict[str, Any] | None = None) -> None:
        self._name, self._function, self._defaults = name, function, defaults or {}
        self.default = self
        namespace, _, rest = name.partition("::")
        if namespace in _OWN:
            raise Untraceable(f"{name} replaces an operator of torch: register it under a name of its own")
        setattr(getattr(torch.ops, namespace), rest.partition(".")[0], self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._function is None:
            raise Untraceable(f"the operator {self._name} has no implementation for CUDA tensors")
        given = list(self._defaults)[: len(args)]
        rest = {k: v for k, v in self._defaults.items() if k not in given and k not in kwargs and v is not None}
        return self._function(*args, **kwargs, **rest)

    def implement(self, function: Callable[..., Any]) -> None:
        """Use this body from now on."""
        self._function = function

    def register_kernel(self, device_types: Any, function: Any = None, /) -> Any:
        def take(given: Any) -> Any:
            if device_types is None or "cuda" in device_types:
                self._function = given
            return given

        return take if function is None else take(function)

    def register_fake(self, function: Any = None, /, **_: Any) -> Any:
        return function if function is not None else lambda given: given

    register_autograd = register_vmap = register_fake

    def register_torch_dispatch(self, kind: Any, function: Any = None, /) -> Any:
        return self.register_fake(function)


def _custom_op(name: str, function: Any = None, /, *, device_types: Any = None, **_: Any) -> Any:
    return (lambda given: PlainOp(name, given)) if function is None else PlainOp(name, function)


def _op(name: Any) -> PlainOp:
    """The operator of a name such as `ns::name`, or the operator itself."""
    if isinstance(name, PlainOp):
        return name
    namespace, _, rest = str(name).partition("::")
    found = getattr(getattr(torch.ops, namespace), rest.partition(".")[0], None)
    if not isinstance(found, PlainOp):
        raise Untraceable(f"{name} is registered for an operator that this module does not define")
    return found


def _define(name: str, schema: str) -> PlainOp:
    """An operator without a body yet, its defaults from the schema. Raises RuntimeError for text that is no schema."""
    parsed = torch._C.parse_schema(f"{name}{schema}")
    return PlainOp(name, defaults={a.name: a.default_value if a.has_default_value() else None for a in parsed.arguments})


def _open_library(library: Any, ns: str, kind: str, dispatch_key: str = "") -> None:
    library.ns, library.kind, library.dispatch_key = ns, kind, dispatch_key


def _define_in(library: Any, schema: str, alias_analysis: str = "", *, tags: Any = ()) -> str:
    name, bracket, rest = schema.partition("(")
    _define(f"{library.ns}::{name.strip()}", bracket + rest)
    return name.strip()


def _implement_in(library: Any, op_name: Any, fn: Any, dispatch_key: str = "", **_: Any) -> None:
    if (dispatch_key or library.dispatch_key) in _ON_CUDA:
        name = op_name if isinstance(op_name, PlainOp) or "::" in op_name else f"{library.ns}::{op_name}"
        _op(name).implement(fn)


def _impl(name: Any, *rest: Any, lib: Any = None, **_: Any) -> Any:
    """`torch.library.impl("ns::name", types, function)`, and its older form `impl(library, "name", key)`."""
    if isinstance(name, torch.library.Library):
        name, rest = f"{name.ns}::{rest[0]}", rest[1:]
    types, function = (*rest, None, None)[:2]
    listed = [types] if isinstance(types, str) or types is None else list(types)

    def take(given: Any) -> Any:
        if any(one is None or one in _ON_CUDA for one in listed):
            _op(name).implement(given)
        return given

    return take if function is None else take(function)


def _defined(name: str, schema: Any = None, *, lib: Any = None, tags: Any = ()) -> Any:
    if isinstance(name, torch.library.Library):
        return name.define(schema)
    return _define(name, schema)


def _ignored(*args: Any, **_: Any) -> Any:
    """What describes an operator to the compiler or to autograd, as a call or as a decorator."""
    return args[1] if len(args) > 1 and callable(args[1]) else lambda given: given


def _unless_torch_calls(ours: Callable[..., Any], torch_s: Callable[..., Any]) -> Callable[..., Any]:
    """`ours`, but what torch registers for itself (in modules that it imports late) is registered as ever."""

    @functools.wraps(torch_s)
    def chosen(*args: Any, **kwargs: Any) -> Any:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        return (torch_s if caller.partition(".")[0] == "torch" else ours)(*args, **kwargs)

    return chosen


_FUNCTIONS = {
    "custom_op": _custom_op, "triton_op": _custom_op, "wrap_triton": lambda kernel: kernel,
    "define": _defined, "impl": _impl, "register_kernel": _impl,
    "register_fake": _ignored, "impl_abstract": _ignored, "register_autograd": _ignored, "register_vmap": _ignored,
    "register_torch_dispatch": _ignored,
}  # fmt: skip
_METHODS = {"__init__": _open_library, "define": _define_in, "impl": _implement_in}


def install() -> None:
    """Replace `torch.library`'s functions, and the methods of its Library."""
    for owner, ours in ((torch.library, _FUNCTIONS), (torch.library.Library, _METHODS)):
        for name, function in ours.items():
            setattr(owner, name, _unless_torch_calls(function, getattr(owner, name)))
