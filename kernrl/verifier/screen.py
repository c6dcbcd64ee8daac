"""Checks the syntax tree before anything runs: it takes milliseconds, and says what to write instead.

This gives advice and saves time. It is not a defence: the sandbox and the plan checks stop whatever gets past it.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator

from kernrl.syntax import parse_python
from kernrl.verifier.base.verdict import Rejection, Status

ALLOWED_IMPORTS = frozenset((
    "torch", "triton", "math", "typing", "typing_extensions", "functools", "itertools", "collections", "dataclasses",
    "enum", "numbers", "operator", "abc", "numpy", "copy", "warnings", "contextlib", "types", "string", "random",
    "time", "re", "inspect", "logging", "cmath", "fractions", "statistics", "textwrap", "__future__",
))  # fmt: skip

_INSTEAD = {
    "os": "os is out of reach: decide everything from shapes and arguments",
    "sys": "sys is out of reach: decide everything from shapes and arguments",
    "subprocess": "processes cannot be started: write the computation in Triton",
    "multiprocessing": "processes cannot be started: write the computation in Triton",
    "threading": "threads are not traced: call things in order",
    "concurrent": "threads are not traced: call things in order",
    "asyncio": "threads are not traced: call things in order",
    "ctypes": "native code cannot be called: write the computation in Triton",
    "cffi": "native code cannot be called: write the computation in Triton",
    "cupy": "only Triton kernels are accepted: write the CUDA kernel as a @triton.jit function",
    "numba": "only Triton kernels are accepted: write the CUDA kernel as a @triton.jit function",
    "pycuda": "only Triton kernels are accepted: write the CUDA kernel as a @triton.jit function",
    "socket": "there is no network",
}

_CUDA = "only Triton kernels are accepted: write the CUDA kernel as a @triton.jit function"
_STREAM = "streams, events and CUDA graphs are not traced: launch in order on the current stream"
_FORBIDDEN_ATTRIBUTES = {
    "torch.compile": "torch.compile is not an authored kernel: write the fusion in Triton",
    "torch.jit.script": "TorchScript is not an authored kernel: write the fusion in Triton",
    "torch.jit.trace": "TorchScript is not an authored kernel: write the fusion in Triton",
    "torch.utils.cpp_extension": _CUDA,
    "torch.multiprocessing": "processes cannot be started: write the computation in Triton",
    "torch.distributed": "one GPU is verified: leave torch.distributed out",
    "torch._inductor": "compiled graphs are not authored kernels: write the fusion in Triton",
    "torch._dynamo.optimize": "compiled graphs are not authored kernels: write the fusion in Triton",
    "torch.cuda.Stream": _STREAM,
    "torch.cuda.stream": _STREAM,
    "torch.cuda.Event": _STREAM,
    "torch.cuda.CUDAGraph": _STREAM,
    "torch.cuda.graph": _STREAM,
}
_FORBIDDEN_NAMES = {
    "load_inline": _CUDA,
    "exec": "exec is not allowed: write the code out",
    "eval": "eval is not allowed: write the code out",
    "__import__": "__import__ is not allowed: import at the top of the module",
    "open": "files are out of reach: keep everything in tensors",
    "inline_asm_elementwise": "inline assembly is not allowed: write it with tl operations",
}


def screen(source: str) -> Rejection | None:
    """None if the source may be traced; otherwise the first reason why not, with its line."""
    try:
        with warnings.catch_warnings():
            # a "\d" in a candidate's plain string must not warn on our console
            warnings.simplefilter("ignore")
            tree = parse_python(source)
    except SyntaxError as error:
        text = (error.text or "").strip()[:80]
        return Rejection(Status.SYNTAX_ERROR, f"{error.msg} at line {error.lineno}: {text}")
    except (ValueError, RecursionError, MemoryError) as error:
        return Rejection(Status.SYNTAX_ERROR, f"The code cannot be parsed: {error or type(error).__name__}.")
    try:
        if not _defines_model(tree):
            return Rejection(
                Status.NO_CODE, "The code defines no class ModelNew: name the module ModelNew, with the reference's signature."
            )
        for reason, line in _objections(tree):
            return Rejection(Status.POLICY, f"Line {line}: {reason}.")
    except RecursionError:
        return Rejection(Status.SYNTAX_ERROR, "The code is nested too deeply.")
    return None


def _defines_model(tree: ast.Module) -> bool:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "ModelNew":
            return True
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(t, ast.Name) and t.id == "ModelNew" for t in targets):
            return True
    return False


def _objections(tree: ast.Module) -> Iterator[tuple[str, int]]:
    jit = False
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from ((reason, line) for reason in _import(alias.name))
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from ((reason, line) for reason in _import(module))
            for alias in node.names:
                jit = jit or alias.name == "jit"
                yield from ((reason, line) for reason in _name(f"{module}.{alias.name}"))
        elif isinstance(node, ast.Attribute):
            jit = jit or node.attr == "jit"
            yield from ((reason, line) for reason in _name(_dotted(node)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FORBIDDEN_NAMES:
            yield _FORBIDDEN_NAMES[node.func.id], line
    if not jit:
        yield "there is no @triton.jit function: write the computation as a Triton kernel and launch it in forward()", 1


def _import(module: str) -> Iterator[str]:
    root = module.split(".")[0]
    if root not in ALLOWED_IMPORTS:
        yield _INSTEAD.get(root, f"the import of {root or 'a relative module'} is not allowed: use torch, triton and math")
    yield from _name(module)


def _name(dotted: str) -> Iterator[str]:
    for forbidden, reason in _FORBIDDEN_ATTRIBUTES.items():
        if dotted == forbidden or dotted.startswith(forbidden + "."):
            yield reason
    last = dotted.rpartition(".")[2]
    if last in ("load_inline", "inline_asm_elementwise"):
        yield _FORBIDDEN_NAMES[last]


def _dotted(node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))
