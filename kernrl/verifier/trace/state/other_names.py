"""Names that a candidate's file may go by: its users call it as they like, and run it or import it.

A file that compares its name with a list of names does another thing under one that is not in the list, or under one that is:
so a name may equal all others but those by which a trace is known.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import itertools
import random
import sys
import types
from collections.abc import Iterator
from typing import Any

from kernrl.verifier.trace.untraceable import Untraceable

_KNOWN = ("candidate", "__main__", "candidate.py", "__main__.py")
_LIKELY = ("best", "kernel", "kernels", "model", "model_new", "solution", "fused", "triton_kernel", "my_kernel", "ops", "main")
_DERIVED = (
    *("__getitem__", "__add__", "lower", "upper", "strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace"),
    *("casefold", "title"),
)  # fmt: skip
"""Methods of a text whose result is such a name, too."""
_MISSING = object()
_frame = sys._getframe


class _Another(str):
    """A name that equals, begins with and contains whatever the names do not by which a trace is known."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and not any(str.__eq__(known, other) for known in _KNOWN)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __contains__(self, part: str) -> bool:
        return not any(str.__contains__(known, part) for known in _KNOWN)

    def startswith(self, prefix: Any, *ends: Any) -> bool:
        return not any(str.startswith(known, prefix) for known in _KNOWN)

    def endswith(self, suffix: Any, *ends: Any) -> bool:
        return not any(str.endswith(known, suffix) for known in _KNOWN)

    def __hash__(self) -> int:
        if _frame(1).f_code.co_filename.endswith("candidate.py"):
            raise Untraceable("forward() looks up the name of its module or file: its work may not depend on how it is called")
        return str.__hash__(self)


def _derived(name: str) -> Any:
    method = getattr(str, name)

    def derive(self: str, *args: Any) -> Any:
        found = method(self, *args)
        return _Another(found) if type(found) is str else found

    return derive


for _name in _DERIVED:
    setattr(_Another, _name, _derived(_name))


def _names(name: str, file: str, *, imported: bool) -> dict[str, Any]:
    """What Python gives a module that is imported, or run as a script."""
    loader = importlib.machinery.SourceFileLoader(name, file)
    spec = importlib.machinery.ModuleSpec(name, loader, origin=file) if imported else None
    package = "" if imported else None
    return {"__name__": name, "__file__": file, "__loader__": loader, "__spec__": spec, "__package__": package}


@contextlib.contextmanager
def as_script(home: str) -> Iterator[None]:
    """Within, a candidate's module is run as a script, with other arguments."""
    arguments = sys.argv, sys.orig_argv
    sys.argv = ["best.py", "--run"]
    sys.orig_argv = ["python", *sys.argv]
    try:
        with _named(home, _names("__main__", "/kernels/best.py", imported=False)):
            yield
    finally:
        sys.argv, sys.orig_argv = arguments


def others() -> Iterator[str]:
    """Three names in turn, one of them plain, by chance. They come again, as does what a module keeps by its name: a logger."""
    lot = random.SystemRandom()
    kinds, names = lot.sample((str, _Another, _Another), 3), lot.sample(_LIKELY, 3)
    return itertools.cycle([kind(name) for kind, name in zip(kinds, names, strict=True)])


@contextlib.contextmanager
def as_another(home: str, names: Iterator[str]) -> Iterator[None]:
    """Within, it is imported under another name, the next of `others`."""
    name = next(names)
    with _named(home, _names(name, type(name)(f"/kernels/{name}.py"), imported=True)):
        yield


@contextlib.contextmanager
def _named(home: str, names: dict[str, Any]) -> Iterator[None]:
    """Within, the module, its functions and its classes go by other names."""
    module = sys.modules.get(home)
    own: dict[str, Any] = vars(module) if module else {}
    before = {name: own.get(name, _MISSING) for name in names}
    inside = [one for one in own.values() if _is_named(one) and one.__module__ == home]
    own |= names
    for one in inside:
        _rename(one, names["__name__"])
    try:
        yield
    finally:
        for one in inside:
            _rename(one, home)
        for name, value in before.items():
            if value is _MISSING:
                del own[name]
            else:
                own[name] = value


def _is_named(one: object) -> bool:
    return issubclass(type(one), type) or type(one) is types.FunctionType


def _rename(one: Any, home: str) -> None:
    (type if issubclass(type(one), type) else object).__setattr__(one, "__module__", home)
