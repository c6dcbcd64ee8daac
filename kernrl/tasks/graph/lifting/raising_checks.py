"""Checks of numbers that only raise (`if (var < 0).any(): raise`), which a trace without numbers passes."""

from __future__ import annotations

import ast
import contextlib
import inspect
import sys
import textwrap
import threading
from collections.abc import Iterator
from types import FrameType

import torch
from torch import Tensor

from kernrl.syntax import parse_python


@contextlib.contextmanager
def checks_passed() -> Iterator[None]:
    """Answer a tensor's truth in this thread where one of the answers would only raise: a module is judged where it does not.

    torch's own checks are such, as those of distributions. Any other condition is asked as ever.
    """
    ours, ask = threading.get_ident(), torch.Tensor.__bool__

    def truth(tensor: Tensor) -> bool:
        passing = _passing(sys._getframe(1)) if threading.get_ident() == ours else None
        return ask(tensor) if passing is None else passing

    torch.Tensor.__bool__ = truth  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.Tensor.__bool__ = ask  # pyright: ignore[reportAttributeAccessIssue]


def _passing(frame: FrameType) -> bool | None:
    """The truth of a tensor with which the check that a frame is at does not raise; None where it is at no such check."""
    try:
        lines, first = inspect.getsourcelines(frame.f_code)
        tree = parse_python(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return None
    line = frame.f_lineno - max(first, 1) + 1
    for node in ast.walk(tree):
        if not isinstance(node, ast.If | ast.Assert) or not node.test.lineno <= line <= (node.test.end_lineno or 0):
            continue
        if isinstance(node, ast.If) and not (len(node.body) == 1 and isinstance(node.body[0], ast.Raise)):
            return None
        test, wanted = node.test, isinstance(node, ast.Assert)
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, wanted = test.operand, not wanted
        return None if any(isinstance(part, ast.Not | ast.IfExp) for part in ast.walk(test)) else wanted
    return None
