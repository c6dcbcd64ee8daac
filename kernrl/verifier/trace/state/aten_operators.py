"""Whether torch's operators, their overloads and the functions that these call are what they were before a candidate."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from kernrl.verifier.trace.state import ownership
from kernrl.verifier.trace.state.library_state import Attributes, Dicts
from kernrl.verifier.trace.untraceable import Untraceable

_CALLED = frozenset(("_op", "_op_dk"))
"""Attributes of operators in which the functions of C are that they call."""
_FOUND_LATER = frozenset(("_dispatch_cache", "_lazy_handle", "is_view", "__annotations__"))
"""Attributes of operators that torch sets when they are first needed."""
_BODIES = ("py_kernels", "python_key_table", "functorch_table", "_dispatch_cache")
"""Tables of operators by which torch finds what they call under a mode."""
_NOT_OPERATORS = frozenset(("name",))
"""Names of `torch.ops.aten` that are no operators."""

_OVERLOAD = torch._ops.OpOverload

_operators: dict[tuple[str, str], tuple[Any, dict[str, Any]]] = {}
"""Torch's operators and their overloads by name (`_named_operators`), and the attributes of each."""
_on_operators: Attributes | None = None
_bodies: Dicts[tuple[tuple[str, str], str]] | None = None
"""Their tables (`_BODIES`)."""


def remember() -> None:
    """Once, before candidates: what there is now is torch's own."""
    global _on_operators, _bodies
    _operators.update((name, (one, dict(vars(one)))) for name, one in _named_operators())
    _on_operators = Attributes([one for one, _ in _operators.values()])
    _bodies = Dicts(
        {(n, table): vars(one)[table] for n, (one, _) in _operators.items() for table in _BODIES if table in vars(one)}
    )


def check(*, renamed: bool) -> None:
    """Raise Untraceable if anything of them is replaced. `renamed`: whether a name of `torch.ops.aten` was set since."""
    for name, value in vars(torch.ops.aten).items() if renamed else ():
        if not name.startswith("_") and type(value) is not torch._ops.OpOverloadPacket and name not in _NOT_OPERATORS:
            raise Untraceable(f"the code replaces torch.ops.aten.{name}: leave other modules as they are")
    if _on_operators is not None and ((some := _on_operators.changed()) or renamed):
        _check_operators(some)
    if _bodies is not None:
        _check_bodies(_bodies.changed())


def _check_operators(changed: Iterable[int]) -> None:
    """Raise Untraceable if an operator, or an overload of one, is replaced or calls something else. There may be others than at
    first, which are made when they are first asked for. `changed`: places in `_operators`, to look at where no name is left."""
    known = list(_operators.items())
    for name, one in (*_named_operators(), *((known[i][0], known[i][1][0]) for i in changed)):
        before, attributes = _operators.get(name, (one, vars(one)))
        if one is not before:
            raise Untraceable(f"the code replaces torch.ops.aten.{name[0]}: leave other modules as they are")
        for key, value in vars(one).items():
            called = key in _CALLED and type(value) is not types.BuiltinFunctionType
            found_later = key in _FOUND_LATER or (type(value) is _OVERLOAD and value.__name__ == f"{one.__name__}.{key}")
            if called or (not found_later and attributes.get(key, _FOUND_LATER) is not value):
                what = f"torch.ops.aten.{name[0]}" if type(value) is _OVERLOAD else f"what {one} calls ({key})"
                raise Untraceable(f"the code replaces {what}: leave other modules as they are")


def _check_bodies(changed: Iterable[tuple[tuple[str, str], str]]) -> None:
    """Raise Untraceable if a function in these tables of operators is none of torch."""
    for name, table in changed:
        operator = _operators[name][0]
        for body in vars(operator)[table].values():
            if callable(body) and not ownership.was_there(body):
                raise Untraceable(f"the code replaces what {operator} calls: leave other modules as they are")


def _named_operators() -> Iterator[tuple[tuple[str, str], Any]]:
    """Torch's operators by name and "", and their overloads by both names."""
    for name, packet in vars(torch.ops.aten).items():
        if type(packet) is torch._ops.OpOverloadPacket:
            yield (name, ""), packet
            yield from (((name, key), one) for key, one in vars(packet).items() if type(one) is torch._ops.OpOverload)
