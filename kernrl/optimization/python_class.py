"""`package.module:Class` as a task: the class is imported, made, and lifted at inputs of the given shapes."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kernrl.errors import UsageError
from kernrl.optimization.module_task import task_of_module
from kernrl.syntax import parse_python
from kernrl.tasks.task import Task
from kernrl.user_code import load_function

DTYPES = "float64|float32|float16|bfloat16|int64|int32|bool"
INPUT = re.compile(rf"\s*(?:([A-Za-z_]\w*)\s*=\s*)?({DTYPES})\[([\d,\s]*)\](?:\s*<\s*(\d+))?\s*")
FORM = "write each as NAME=DTYPE[SIZES], such as x=float32[64,128]; int64[8]<100 draws whole numbers below 100"


def task_of_class(name: str, inputs: str, init: str) -> Task:
    """The task of a class.

    Args:
        inputs: Arguments of `forward`, such as `x=float32[64,128], int64[64]<1000`; nothing is evaluated.
        init: Literal arguments of the constructor, such as `128, bias=False`.

    Raises:
        UsageError: It cannot be imported, made or lifted, or an argument is not of that form.
    """
    cls = _import(name)
    args, kwargs = _literals(init)
    try:
        module = cls(*args, **kwargs)
    except Exception as error:
        raise UsageError(f"{name}: cannot be made with --init {init!r}: {type(error).__name__}: {error}") from error
    return task_of_module(module.eval(), read_inputs(inputs), name.rpartition(":")[2])


def is_class(path: str) -> bool:
    """Whether `package.module:name` is a module's class. Raises UsageError where there is nothing of that name."""
    found = load_function(path, "the source of tasks")
    return isinstance(found, type) and issubclass(found, nn.Module)


def _import(name: str) -> type[nn.Module]:
    module_name, _, class_name = name.partition(":")
    here = str(Path.cwd())
    sys.path.append(here)  # a module of this folder is found, and shadows nothing
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{name}: cannot be imported: {error}.") from error
    finally:
        sys.path.remove(here)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UsageError(f"{name}: this is no torch.nn.Module; name a class that is one.")
    return found


def _literals(text: str) -> tuple[list[Any], dict[str, Any]]:
    """`128, bias=False` as arguments."""
    try:
        [line] = parse_python(f"f({text})").body
        call = line.value if isinstance(line, ast.Expr) else None
        assert isinstance(call, ast.Call)
        named = {k.arg: ast.literal_eval(k.value) for k in call.keywords if k.arg}
        return [ast.literal_eval(a) for a in call.args], named
    except (SyntaxError, ValueError, AssertionError):
        raise UsageError(f"--init {text!r}: write literal arguments, such as '128, bias=False'.") from None


def read_inputs(text: str) -> dict[str, Tensor] | list[Tensor]:
    """`x=float32[64,128], int64[64]<1000` as tensors: by name where all have one, else by position."""
    found: list[tuple[str, Tensor]] = []
    at = 0
    while at < len(text):
        match = INPUT.match(text, at)
        if match is None or (match.end() < len(text) and text[match.end()] != ","):
            raise UsageError(f"--inputs {text!r}: {FORM}.")
        name, dtype, sizes, most = match.groups()
        shape = [int(s) for s in sizes.split(",") if s.strip()]
        if 0 in shape:
            raise UsageError(f"--inputs {text!r}: {match[0].strip()} has no elements; give sizes of 1 or more.")
        try:
            found.append((name or "", _drawn(dtype, shape, int(most or 2))))
        except (RuntimeError, TypeError, ValueError):  # torch's errors of sizes and of memory
            raise UsageError(f"--inputs {text!r}: {match[0].strip()} is too large for this machine; give less.") from None
        at = match.end() + 1
    named = [name for name, _ in found if name]
    if not found or (named and len(named) != len(found)):
        raise UsageError(f"--inputs {text!r}: {FORM}; name all of them or none.")
    return dict(found) if named else [tensor for _, tensor in found]


def _drawn(dtype: str, shape: list[int], most: int) -> Tensor:
    kind: torch.dtype = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(shape).to(kind)
    return torch.randint(0, most, shape).to(kind)
