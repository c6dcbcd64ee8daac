"""Parsing Python in threads."""

from __future__ import annotations

import ast
import contextlib
import threading

AGAIN = 8
"""How often a text is parsed anew after a SystemError."""

_one_at_a_time = threading.Lock()


def parse_python(source: str) -> ast.Module:
    """`ast.parse`, safe in threads: in releases of CPython 3.11 two at once share a counter, and may raise SystemError.

    It takes a garbage collection that runs Python code in the middle of one. All of kernrl parses here, one text at a time;
    where a library parses meanwhile, the text is parsed again.
    """
    with _one_at_a_time:
        for _ in range(AGAIN):
            with contextlib.suppress(SystemError):
                return ast.parse(source)
        return ast.parse(source)
