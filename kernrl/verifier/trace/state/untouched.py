"""Whether a candidate leaves the modules of others as they are: their names, functions, tables, settings and hooks.

A module that replaces `torch.allclose` is right in the trace and wrong in use. What there is before candidates is remembered
here, and compared after each of them; `library_state` and `library_tables` look at all that is loaded, and here is what it
takes to say more of torch and Triton. Only for the trace child's process.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import copyreg
import gc
import importlib
import operator
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from kernrl.syntax import parse_python
from kernrl.verifier.base import compat
from kernrl.verifier.trace.state import aten_operators, ownership, python_state
from kernrl.verifier.trace.state.library_state import Attributes, Dicts, LibraryState, namespace
from kernrl.verifier.trace.state.library_tables import LibraryTables
from kernrl.verifier.trace.untraceable import Untraceable

_FOREIGN = (
    *("builtins", "time", "random", "os", "math", "inspect", "gc", "statistics", "numpy", "numpy.testing"),
    *("torch", "torch.nn", "torch.nn.functional", "torch.nn.modules.module", "torch.nn.parameter", "torch.nn.init"),
    *("torch.cuda", "torch.testing", "torch.autograd", "torch.utils", "torch.linalg", "torch.overrides", "torch.backends"),
    *("triton", "triton.testing", "triton.language", "triton.language.core", "triton.language.math"),
    *("triton.language.standard", "triton.runtime", "triton.runtime.jit", "triton.runtime.autotuner", "triton.compiler"),
    *("sys", "copy", "copyreg", "torch.testing._comparison", "torch.utils.benchmark", "torch.utils.benchmark.utils.timer"),
    *("torch.profiler", "torch.autograd.profiler", "torch.autograd.grad_mode", "torch.optim", "torch.serialization"),
)
_OWN_NAMES = frozenset(("sys", "builtins", "math", "torch", "torch.nn", "torch.nn.functional", "triton", "triton.language"))
"""Modules on which a candidate may not leave names of its own, either."""
_CLASSES = (
    *("torch.testing._comparison:TensorLikePair", "torch.testing._comparison:NumberPair", "torch._ops:OpOverload"),
    *("torch.utils.benchmark.utils.timer:Timer", "torch.autograd.profiler:profile", "torch.profiler:profile"),
    *("torch:Tensor", "torch.nn:Module", "torch.nn:Linear", "triton.runtime.jit:JITFunction", "torch.cuda:Event"),
)
_HOOKS = tuple(f"_global_{name}_hooks" for name in ("forward", "forward_pre", "backward", "parameter_registration"))

_ATEN = "torch.ops.aten"

_settings: dict[str, Any] = {}
"""Torch's settings as they were."""
_before: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {}
"""Names of each module and class: as they are now, and as they were."""
_dicts: Dicts[str] | None = None
"""These names, torch's operators and the dicts of `_tables`. One that has not changed is not looked through."""
_knobs: dict[str, Any] = {}
"""Triton's settings as they were."""
_inherited: dict[str, frozenset[str]] = {}
_tables: list[tuple[str, Any, list[Any]]] = []
"""Name, object and contents of lists and dicts that decide how others import, copy and compute."""
_libraries: LibraryState | None = None
"""Everything that was loaded, as it was."""
_in_libraries: list[LibraryTables] = []
"""What the names of libraries stand for, as it was; after the first, of modules that a candidate has loaded."""
_added: dict[str, object] = {}
"""What a candidate has put there."""
_forked: dict[str, object] = {}
"""What forking has put there."""
_attributes: dict[int, frozenset[str]] = {}
"""Names that hang on each function of `_OWN_NAMES`."""
_on_functions: Attributes | None = None


def remember() -> None:
    """Remember what modules hold, once, before candidates, and after guards are in their places."""
    global _libraries, _dicts, _on_functions
    _fill_in()
    _tables.clear()
    _in_libraries.clear()
    _knobs.update({} if _knobs else compat.knobs())  # settings are never set by loading a part of torch
    _settings.update({} if _settings else compat.torch_settings())
    for name in _FOREIGN:
        names = vars(sys.modules[name])
        _before[name] = names, dict(names)
    for one in _CLASSES:
        module, _, name = one.partition(":")
        _remember_class(f"{module}.{name}", getattr(sys.modules[module], name))
    for name, cls in vars(torch.nn).items():
        if isinstance(cls, type) and f"torch.nn.{name}" not in _before:
            _remember_class(f"torch.nn.{name}", cls)
    decompositions = importlib.import_module("torch._decomp").decomposition_table
    others = importlib.import_module("torch._decomp").global_decomposition_table
    tables = {
        "sys.meta_path": sys.meta_path, "sys.path_hooks": sys.path_hooks, "copyreg.dispatch_table": copyreg.dispatch_table,
        "torch._decomp.decomposition_table": decompositions, "copy._deepcopy_dispatch": vars(copy)["_deepcopy_dispatch"],
        "copy._copy_dispatch": vars(copy)["_copy_dispatch"],
        **{f"torch._decomp's table {name!r}": table for name, table in others.items() if table is not decompositions},
    }  # fmt: skip
    on = [value for place in _OWN_NAMES for value in _before[place][1].values() if type(value) is types.FunctionType]
    _attributes.update((id(value), frozenset(vars(value))) for value in on)
    _tables.extend((name, table, _contents(table)) for name, table in tables.items())
    ownership.know_libraries()
    _libraries = LibraryState()
    _in_libraries.append(LibraryTables(_libraries.namespaces()))
    names = {place: now for place, (now, _) in _before.items()}
    _dicts = Dicts({**names, _ATEN: vars(torch.ops.aten), **{n: one for n, one in tables.items() if isinstance(one, dict)}})
    _on_functions = Attributes(on)
    aten_operators.remember()


def load_ahead(source: str) -> None:
    """Load the parts of torch and Triton that a candidate's text imports, and remember what they set as not the candidate's.

    Called before any of its code has run, so nothing of it can pass for torch's.
    """
    new = [name for name in imported(source) if name.partition(".")[0] in ("torch", "triton") and name not in sys.modules]
    if not new or _libraries is None:
        return
    for name in new:
        with contextlib.suppress(Exception):  # no module, or one that fails: the candidate will see
            importlib.import_module(name)
    try:
        check_untouched(at_end=True)
    except Untraceable:  # most set nothing of others, and to remember all takes a second
        remember()


def imported(source: str) -> list[str]:
    """What may be modules of the imports in a text; nothing of a text that is no Python."""
    try:
        nodes = list(ast.walk(parse_python(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found += [node.module, *(f"{node.module}.{one.name}" for one in node.names)]
    return found


def _fill_in() -> None:
    """Have libraries set what they set when it is first needed: it would seem to be replaced by the candidate who needs it."""
    for name in ("_strptime", *_FOREIGN, *(one.partition(":")[0] for one in _CLASSES)):  # the first sets `time.tzname`
        importlib.import_module(name)
    with torch.profiler.record_function("first"):
        pass
    rules = importlib.import_module("torch._library.simple_registry").singleton
    for name in torch._C._dispatch_get_all_op_names():
        rules.find(name.partition(".")[0])  # dispatch modes ask for them
        if name.startswith("aten::"):
            operator, _, overload = name.removeprefix("aten::").partition(".")
            with contextlib.suppress(AttributeError):  # some are for TorchScript alone
                getattr(getattr(torch.ops.aten, operator), overload or "default")


def _remember_class(place: str, cls: Any) -> None:
    if isinstance(cls, type):
        names = namespace(cls)
        _before[place] = names, dict(names)
        _inherited[place] = frozenset(attribute for base in cls.__mro__[1:] for attribute in vars(base))


def _contents(table: Any) -> list[Any]:
    return list(table.items()) if isinstance(table, dict) else list(table)


def add_module(name: str, module: types.ModuleType) -> None:
    """Put a candidate's module where others import it from."""
    if _libraries is None:
        sys.modules[name] = module
    else:
        _libraries.add_module(name, module)


def check_untouched(*, at_end: bool = False) -> None:
    """Raise Untraceable if anything that was there before the candidate is replaced, or is hooked. `at_end`: also in tables."""
    for name, value in compat.torch_settings().items() if _settings else ():
        if value != _settings[name]:
            raise Untraceable(f"the code changes torch's {name}: leave torch's settings as they are")
    changed = _dicts.changed() if _dicts else []
    for place in changed:
        now, before = _before.get(place, ({}, {}))
        if _same_objects(now, before):
            continue
        for name, value in now.items():
            # a new name of a class may hide one that it inherits
            if value is not before.get(name, value if name not in _inherited.get(place, ()) else None):
                raise Untraceable(f"the code replaces {place}.{name}: leave other modules as they are")
            if name not in before and (place in _OWN_NAMES or place in _inherited) and _is_data(value):
                raise Untraceable(f"the code leaves {place}.{name}: leave other modules as they are")
    if _on_functions is not None:
        _check_functions(_OWN_NAMES if _on_functions.changed() else _OWN_NAMES.intersection(changed))
    aten_operators.check(renamed=_ATEN in changed)
    if _libraries is not None and (replaced := _libraries.replaced()):
        raise Untraceable(f"the code replaces {replaced}: leave other modules as they are")
    for one in _in_libraries[:1] if at_end else ():
        if replaced := one.replaced():
            raise Untraceable(f"the code replaces {replaced}: leave other modules as they are")
    for name, table, contents in _tables:
        if isinstance(table, dict) and name not in changed:
            continue
        now = _contents(table)
        if len(now) != len(contents) or any(a is not b and a != b for a, b in zip(now, contents, strict=True)):
            raise Untraceable(f"the code changes {name}: leave other modules as they are")
    for name, value in compat.knobs().items() if _knobs else ():
        if value != _knobs.get(name):
            raise Untraceable(f"the code changes triton.knobs.{name}: leave Triton's settings as they are")
    for name in _HOOKS:
        if getattr(torch.nn.modules.module, name, None):
            raise Untraceable("the code hooks every module: leave other modules as they are")
    if gc.callbacks:
        raise Untraceable("the code leaves a callback with Python's garbage collector: do the work in forward()")


def _check_functions(places: Iterable[str]) -> None:
    """Raise Untraceable if a function of these modules has an attribute that it did not have."""
    for place in places:
        for name, value in _before[place][0].items():
            if type(value) is not types.FunctionType or not (own := vars(value)):
                continue
            if left := own.keys() - _attributes.get(id(value), frozenset()):
                raise Untraceable(f"the code leaves {min(left)} on {place}.{name}: leave other modules as they are")


_all, _map, _len, _is = all, map, len, operator.is_
"""As they were before any candidate, which may have replaced Python's."""


def _same_objects(now: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether two namespaces hold the same objects under the same names, in the same order. Compares without Python code of
    either, as tens of thousands of names are looked at for each candidate."""
    return _len(now) == _len(before) and _all(_map(_is, now.values(), before.values())) and [*now] == [*before]


def _is_data(value: Any) -> bool:
    return isinstance(value, int | float | str | bytes | list | dict | set)


def begin() -> None:
    """In the process of a candidate, before it runs: what the fork put into libraries is not the candidate's."""
    if _libraries is not None:
        _forked.update(_libraries.names()[1])


def library_names() -> dict[str, object]:
    """What is another after code sets a name of a library, or changes what it has put there."""
    if _libraries is None:
        return {}
    found, added = _libraries.names()
    mine = {place: value for place, value in (added | _added).items() if _forked.get(place, _forked) is not value}
    return found | python_state.hung(mine)


def library_tables() -> dict[str, object]:
    """What is another after code changes what names of libraries stand for."""
    if _libraries is None:
        return {}
    if new := _libraries.of_new_modules():
        _in_libraries.append(LibraryTables(new, whole=True))
    found: dict[str, object] = {"sys.modules": len(sys.modules)}
    for one in _in_libraries:
        changed, added = one.changed()
        found |= changed
        _added.update(added)
    return found
