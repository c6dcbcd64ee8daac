"""`torch.library` in a trace: operators that a candidate registers are plain functions, so that their bodies are traced.

Each is also found where a caller looks for it, `torch.ops.NAMESPACE.NAME`, with or without `.default`. Only for the trace
child's process: `install` replaces public functions for good.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from kernrl.verifier.trace.untraceable import Untraceable

_OWN = frozenset(("aten", "prim", "prims", "_c10d_functional", "quantized"))
_CUDA = ("CUDA", "cuda")
_ANYWHERE = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "default", "")
"""Keys of a body that is called where there is none for CUDA."""
_AROUND = ("Autograd", "AutogradCUDA")
_NEVER = re.compile("(Autograd|Autocast|Sparse|Quantized)?(CPU|Meta|XPU|MPS|HPU|XLA|Lazy|PrivateUse1)", re.IGNORECASE)
"""Keys that no call on CUDA tensors comes to."""


class PlainOp:
    """One registered operator."""

    def __init__(self, name: str, function: Callable[..., Any] | None = None, defaults: dict[str, Any] | None = None) -> None:
        self._name, self._function, self._defaults = name, function, defaults or {}
        self._for_cuda = False
        self._around: Callable[..., Any] | None = None
        """What torch calls in its place, but in inference mode: it may call the operator again."""
        self._setup_context: Callable[..., Any] | None = None
        self.default = self
        _check_name(name)
        namespace, _, rest = name.partition("::")
        setattr(getattr(torch.ops, namespace), rest.partition(".")[0], self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._around is not None and not torch.is_inference_mode_enabled():
            around, self._around = self._around, None
            try:
                return around(*args, **kwargs)
            finally:
                self._around = around
        if self._function is None:
            raise Untraceable(f"the operator {self._name} has no implementation for CUDA tensors")
        given = list(self._defaults)[: len(args)]
        rest = {k: v for k, v in self._defaults.items() if k not in given and k not in kwargs and v is not None}
        returned = self._function(*args, **kwargs, **rest)
        if self._setup_context is not None and torch.is_grad_enabled():
            self._set_up(args, {**kwargs, **rest}, returned)
        return returned

    def _set_up(self, args: Any, kwargs: dict[str, Any], returned: Any) -> None:
        """Do what torch does after a call that may need gradients. What this changes is recorded."""
        given = inspect.signature(self._function).bind(*args, **kwargs)  # pyright: ignore[reportArgumentType]
        given.apply_defaults()
        context = SimpleNamespace(needs_input_grad=(False,) * len(given.args))
        for name in ("save_for_backward", "save_for_forward", "mark_dirty", "mark_non_differentiable", "set_materialize_grads"):
            setattr(context, name, lambda *_: None)
        keywords = {"keyword_only_inputs": given.kwargs} if given.kwargs else {}
        self._setup_context(context, given.args, returned, **keywords)  # pyright: ignore[reportOptionalCall]

    def implement(self, function: Callable[..., Any], key: str = "CUDA") -> None:
        """Use this body from now on, if calls on CUDA tensors come to `key`."""
        if key in _AROUND:
            self._around = function
        elif key in _CUDA or (key in _ANYWHERE and not self._for_cuda):
            self._function, self._for_cuda = function, key in _CUDA
        elif key in _ANYWHERE:
            return
        elif not _NEVER.fullmatch(key):
            raise Untraceable(
                f"{self._name} gets a body for {key}, by which it may do something else in use: register one for CUDA"
            )

    def register_autograd(self, backward: Any = None, /, *, setup_context: Any = None, **_: Any) -> Any:
        self._setup_context = setup_context

    def register_kernel(self, device_types: Any, function: Any = None, /) -> Any:
        def take(given: Any) -> Any:
            if device_types is None or "cuda" in device_types:
                self.implement(given, "" if device_types is None else "cuda")
            return given

        return take if function is None else take(function)

    def register_fake(self, function: Any = None, /, **_: Any) -> Any:
        return function if function is not None else lambda given: given

    register_vmap = register_fake

    def register_torch_dispatch(self, kind: Any, function: Any = None, /) -> Any:
        return self.register_fake(function)


def _check_name(name: str) -> None:
    if name.partition("::")[0] in _OWN:
        raise Untraceable(f"{name} replaces an operator of torch: register it under a name of its own")


def _custom_op(name: str, function: Any = None, /, *, device_types: Any = None, **_: Any) -> Any:
    return (lambda given: PlainOp(name, given)) if function is None else PlainOp(name, function)


def _op(name: Any) -> PlainOp:
    """The operator of a name such as `ns::name`, or the operator itself."""
    if isinstance(name, PlainOp):
        return name
    _check_name(str(name))
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


def _describe_in(library: Any, op_name: Any, fn: Any, *_: Any, **__: Any) -> None:
    """What a library tells the compiler of an operator that it defines."""


def _implement_in(library: Any, op_name: Any, fn: Any, dispatch_key: str = "", **_: Any) -> None:
    name = op_name if isinstance(op_name, PlainOp) or "::" in op_name else f"{library.ns}::{op_name}"
    _op(name).implement(fn, dispatch_key or library.dispatch_key)


def _impl(name: Any, *rest: Any, lib: Any = None, **_: Any) -> Any:
    """`torch.library.impl("ns::name", types, function)`, and its older form `impl(library, "name", key)`."""
    if isinstance(name, torch.library.Library):
        name, rest = f"{name.ns}::{rest[0]}", rest[1:]
    types, function = (*rest, None, None)[:2]
    listed = [types] if isinstance(types, str) or types is None else list(types)

    def take(given: Any) -> Any:
        for one in listed:
            _op(name).implement(given, one or "")
        return given

    return take if function is None else take(function)


def _defined(name: str, schema: Any = None, *, lib: Any = None, tags: Any = ()) -> Any:
    if isinstance(name, torch.library.Library):
        return name.define(schema)
    return _define(name, schema)


def _register_autograd(name: Any, backward: Any = None, /, *, setup_context: Any = None, lib: Any = None) -> None:
    _op(name).register_autograd(backward, setup_context=setup_context)


def _ignored(*args: Any, **_: Any) -> Any:
    """What describes an operator to the compiler, as a call or as a decorator."""
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
    "register_fake": _ignored, "impl_abstract": _ignored, "register_autograd": _register_autograd, "register_vmap": _ignored,
    "register_torch_dispatch": _ignored,
}  # fmt: skip
_METHODS = {"__init__": _open_library, "define": _define_in, "impl": _implement_in, "_register_fake": _describe_in}


def install() -> None:
    """Replace `torch.library`'s functions, and the methods of its Library."""
    for owner, ours in ((torch.library, _FUNCTIONS), (torch.library.Library, _METHODS)):
        for name, function in ours.items():
            setattr(owner, name, _unless_torch_calls(function, getattr(owner, name)))
