"""What a module may not have of its own: methods and hooks that torch calls in use, and that a trace of `forward` does not see.

A user moves a module, loads weights into it, copies it. One that does its own thing there is right in the trace and wrong in
use. Modules of torch itself may (`weight_norm` is a hook of its own).
"""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch.nn.utils import parametrize

from kernrl.verifier.trace.state.ownership import is_own, is_own_function
from kernrl.verifier.trace.untraceable import Untraceable

_WRITTEN = frozenset(("__init__", "forward", "extra_repr", "__repr__", "__doc__", "__module__", "__annotations__", "training"))
"""What a class may define that `torch.nn.Module` defines, too."""
_COPYING = ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__getattribute__")
_TAKEN = frozenset((*vars(torch.nn.Module), *_COPYING, "__del__")) - _WRITTEN - frozenset(("__dict__", "__weakref__"))

_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
)

_DICTS = frozenset(("_parameters", "_buffers", "_modules", *_HOOKS))


def check_methods(model: torch.nn.Module, code: str) -> None:
    """Raise Untraceable if a module or a part of it replaces methods of `torch.nn.Module`, or hooks itself.

    `code` is the name of the candidate's Python module.
    """
    for part in model.modules():
        if odd := [name for name, value in vars(part).items() if name in _DICTS and type(value) not in (dict, OrderedDict)]:
            raise Untraceable(f"{type(part).__name__} keeps its {odd[0]} in an object of another class: leave them to torch")
        for cls in type(part).__mro__:
            taken = {
                name: value for name, value in vars(cls).items() if name in _TAKEN and not _by_parametrize(name, value, code)
            }
            if is_own(cls, code) and (own := sorted(taken)):
                raise Untraceable(f"{cls.__name__} has a method {own[0]} of its own: write __init__ and forward, no more")
        if own := sorted(name for name in _TAKEN & vars(part).keys() if not _is_a_value(name, vars(part)[name])):
            raise Untraceable(f"the module replaces its {own[0]}: write __init__ and forward, no more")
        if any(not _of_torch(hook, code) for hook in _hooks(part)):
            raise Untraceable(f"{type(part).__name__} has a hook: do the work in forward()")


def _by_parametrize(name: str, value: object, code: str) -> bool:
    """Whether torch made this method, for the class that it makes of one whose module has a parametrization."""
    if name not in ("__deepcopy__", "__getstate__") or not isinstance(value, types.FunctionType):
        return False
    return value.__globals__ is vars(parametrize) and not is_own_function(value, code)


def _is_a_value(name: str, value: object) -> bool:
    """Whether it is a plain value under a method's name, such as `self.half = width // 2`: calling it fails openly."""
    return not name.startswith("_") and isinstance(value, bool | int | float | str)


def _hooks(part: torch.nn.Module) -> Iterator[object]:
    for name in _HOOKS:
        for hook in getattr(part, name, {}).values():
            yield getattr(hook, "hook", hook)  # torch wraps some


def _of_torch(hook: object, code: str) -> bool:
    if isinstance(hook, types.MethodType):
        hook = hook.__func__
    if isinstance(hook, types.FunctionType) and is_own_function(hook, code):
        return False
    named = getattr(hook, "__module__", None) or type(hook).__module__
    return named.partition(".")[0] == "torch" and (isinstance(hook, types.FunctionType) or not is_own(type(hook), code))
