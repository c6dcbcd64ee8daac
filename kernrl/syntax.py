"""Parsing Python in threads."""

from __future__ import annotations

import ast
import threading

_one_at_a_time = threading.Lock()


def parse_python(source: str) -> ast.Module:
    """`ast.parse`, safe in threads: in releases of CPython 3.11 two at once share a counter, and may raise SystemError.

    It takes a garbage collection that runs Python code in the middle of one.
    """
    with _one_at_a_time:
        return ast.parse(source)
