"""Functions that a user names by import path, such as `my_package.rewards:fn`."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

from kernrl.errors import UsageError


def is_import_path(text: str) -> bool:
    """Whether a text has the form `package.module:name`."""
    return re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", text) is not None


def load_function(path: str, flag: str) -> Callable[..., Any]:
    """The function `name` of `package.module`, looked for in the working directory too.

    Raises:
        UsageError: it cannot be imported, or cannot be called; the sentence names `flag`.
    """
    module, _, name = path.partition(":")
    if "" not in sys.path:
        sys.path.append("")  # the console script, unlike `python -m`, does not look here
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # whatever the module does at import
        raise UsageError(f"{flag} {path}: {module} cannot be imported ({type(error).__name__}: {error}).") from error
    if found is None:
        raise UsageError(f"{flag} {path}: the module {module} has no {name!r}.")
    if not callable(found):
        raise UsageError(f"{flag} {path}: {name} is no function.")
    return found
