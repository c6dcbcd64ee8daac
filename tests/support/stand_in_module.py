"""A package that is not installed, as far as a test needs it."""

import sys
from types import ModuleType

import pytest


def stand_in_module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: object) -> ModuleType:
    """Put an empty module of that dotted name where it is imported from, with its parents, and these contents into it."""
    parts, module = name.split("."), ModuleType(name)
    for i in range(1, len(parts) + 1):
        path = ".".join(parts[:i])
        module = ModuleType(path)
        monkeypatch.setitem(sys.modules, path, module)
        if i > 1:
            setattr(sys.modules[".".join(parts[: i - 1])], parts[i - 1], module)
    vars(module).update(contents)
    return module
