"""Checks the syntax tree before anything runs: it takes milliseconds, and says what to write instead.

This gives advice and saves time. It is not a defence: the sandbox and the plan checks stop whatever gets past it. So it judges
what the code uses, not what it mentions: an import that may fail, a test of a type, a helper that nobody calls are let through.
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from kernrl.syntax import parse_python
from kernrl.verifier.base.verdict import Rejection, Status

_NO_CUDA = "only Triton kernels are accepted: write the CUDA kernel as a @triton.jit function"
_NO_PROCESS = "processes cannot be started: write the computation in Triton"
_NO_THREAD = "threads are not traced: call things in order"
_NO_NATIVE = "native code cannot be called: write the computation in Triton"

_NO_KERNEL = (
    "there is no @triton.jit function: write the kernel in this text, not in one that is written to a file or executed, and "
    "launch it in forward()"
)

_FORBIDDEN_MODULES = {
    "subprocess": _NO_PROCESS, "multiprocessing": _NO_PROCESS, "concurrent": _NO_THREAD, "asyncio": _NO_THREAD,
    "ctypes": _NO_NATIVE, "cffi": _NO_NATIVE, "cupy": _NO_CUDA, "numba": _NO_CUDA, "pycuda": _NO_CUDA,
    "socket": "there is no network", "requests": "there is no network", "urllib": "there is no network",
}  # fmt: skip
"""Modules of which nothing may be used."""

_HARMLESS_PARTS = {
    "os": frozenset(("environ", "getenv", "path", "name", "sep", "linesep", "cpu_count", "getcwd", "fspath", "PathLike")),
    "sys": frozenset(
        ("version", "version_info", "platform", "maxsize", "float_info", "byteorder", "modules", "path", "stdout")
    ),
    "threading": frozenset(("Lock", "RLock", "local", "current_thread", "main_thread", "get_ident")),
}
"""Modules of which this may be used; the rest is out of reach."""
_REACH = {
    "os": "os is out of reach: leave files, folders and processes alone, and decide everything from shapes and arguments",
    "sys": "sys is out of reach: decide everything from shapes and arguments",
    "threading": _NO_THREAD,
}

_CUDA = "only Triton kernels are accepted: write the CUDA kernel as a @triton.jit function"
_SCRIPT = "TorchScript is no authored kernel: write the fusion in Triton, and helpers as plain functions"
_STREAM = "streams, events and CUDA graphs are not traced: launch in order on the current stream"
_FORBIDDEN_ATTRIBUTES = {
    "torch.compile": "torch.compile is not an authored kernel: write the fusion in Triton",
    "torch.jit.script": _SCRIPT,
    "torch.jit.trace": _SCRIPT,
    "torch.utils.cpp_extension": _CUDA,
    "torch.multiprocessing": "processes cannot be started: write the computation in Triton",
    "torch.distributed": "one GPU is verified: leave torch.distributed out",
    "importlib.import_module": "import at the top of the module",
    "torch._inductor.async_compile": "kernels in strings are not traced: write each as a @triton.jit function of the module",
    "torch._inductor.runtime.triton_heuristics": "Inductor's tuning is not traced: use @triton.jit, and kernel[grid](...)",
    "torch._inductor": "compiled graphs are not authored kernels: write the fusion in Triton",
    "torch._dynamo.optimize": "compiled graphs are not authored kernels: write the fusion in Triton",
    "torch.cuda.Stream": _STREAM,
    "torch.cuda.stream": f"{_STREAM}, without `with torch.cuda.stream(...)`",
    "torch.cuda.Event": _STREAM,
    "torch.cuda.CUDAGraph": _STREAM,
    "torch.cuda.graph": _STREAM,
}
_HARMLESS_CALLS = frozenset(f"torch.distributed.is_{n}" for n in ("available", "initialized"))
_HARMLESS_HELPERS = ("torch._inductor.runtime.triton_helpers", "torch._inductor.runtime.hints")
"""Functions for kernels, and what describes kernels: parts of what Inductor writes."""
_FORBIDDEN_NAMES = {
    "load_inline": _CUDA,
    "inline_asm_elementwise": "inline assembly is not allowed: write it with tl operations",
    "exec": "exec is not allowed: write the code out",
    "eval": "eval is not allowed: write the code out",
    "__import__": "__import__ is not allowed: import at the top of the module",
    "open": "files are out of reach: keep everything in tensors",
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


def _has_kernel(tree: ast.Module) -> bool:
    """Whether a `jit` is mentioned, mostly as what decorates a function of the module."""
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    if any(isinstance(d, ast.Attribute) and d.attr == "jit" for f in functions for d in f.decorator_list):
        return True
    mentioned = list(ast.walk(tree))
    return any(isinstance(n, ast.Attribute) and n.attr == "jit" for n in mentioned) or any(
        alias.name == "jit" for n in mentioned if isinstance(n, ast.ImportFrom) for alias in n.names
    )


def _objections(tree: ast.Module) -> Iterator[tuple[str, int]]:
    used = list(_used(tree))
    names = _imported(used)
    for node in used:
        if isinstance(node, ast.Name | ast.Attribute):
            if not isinstance(node.ctx, ast.Load):
                continue
            first, _, rest = _dotted(node).partition(".")
            if first in names:
                yield from ((reason, node.lineno) for reason in _reasons(f"{names[first]}.{rest}".rstrip(".")))
            if isinstance(node, ast.Attribute) and node.attr in ("load_inline", "inline_asm_elementwise"):
                yield _FORBIDDEN_NAMES[node.attr], node.lineno
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _FORBIDDEN_NAMES:
                yield _FORBIDDEN_NAMES[node.func.id], node.lineno
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "the import of a relative module is not allowed: use torch, triton and math", node.lineno
    if not _has_kernel(tree):
        yield _NO_KERNEL, 1


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _used(tree: ast.Module) -> Iterator[ast.AST]:
    """The nodes of what runs: the module's statements, and those functions and classes that they and ModelNew name.

    Left out are what an `isinstance` compares with, and what only a type checker, a failing import, a script, a distributed
    program, one with files of its own or a flag that is off reaches.
    """
    off = _switched_off(tree)
    waiting: dict[str, list[ast.AST]] = {}
    for node in tree.body:
        if isinstance(node, _DEFINITIONS):
            waiting.setdefault(node.name, []).append(node)
    running: list[ast.AST] = [n for n in tree.body if not isinstance(n, _DEFINITIONS)] + waiting.pop("ModelNew", [])
    for node in running:  # which grows
        yield node
        if isinstance(node, ast.Name):
            running += waiting.pop(node.id, ())
        elif isinstance(node, ast.Attribute):
            dotted = _dotted(node)
            running += waiting.pop(node.attr, ())
            running += () if dotted else (node.value,)
            running += waiting.pop(dotted.partition(".")[0], ())
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
                running += node.args[:1]
            elif not _module_named(node):
                running += _children(node)
        elif isinstance(node, ast.Try) and any(_catches_import(h) for h in node.handlers):
            running += [n for n in (*node.body, *node.orelse, *node.finalbody) if not _imports(n)]
        elif isinstance(node, ast.If) and _fails_here(node.test, off):
            running += [node.test, *node.orelse]
        elif isinstance(node, ast.IfExp) and _fails_here(node.test, off):
            running += [node.test, node.orelse]
        else:
            running += _children(node)


_IS_NO_CHILD = frozenset(("ctx", "op", "ops", "id", "attr", "name", "arg", "module", "level", "kind", "type_comment", "simple"))
"""Fields that hold names, operators and the like: half of a tree, of which nothing is to be said."""
_FIELDS = {
    kind: tuple(field for field in kind._fields if field not in _IS_NO_CHILD)
    for kind in vars(ast).values()
    if isinstance(kind, type) and issubclass(kind, ast.AST) and kind is not ast.Constant
}


def _children(node: ast.AST) -> list[ast.AST]:
    """As `ast.iter_child_nodes`, less the operators and contexts: this is most of the screen's time, which holds up the threads
    of all other candidates."""
    found: list[ast.AST] = []
    for field in _FIELDS.get(type(node), ()):
        value = getattr(node, field)
        if isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def _switched_off(tree: ast.Module) -> frozenset[str]:
    """Names that the module sets to something false at its top level, and nowhere else: `USE_COMPILE = False`."""
    stored = Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    off: set[str] = set()
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Constant) and not value.value:
            off |= {t.id for t in targets if isinstance(t, ast.Name) and stored[t.id] == 1}
    return frozenset(off)


def _fails_here(test: ast.expr, off: frozenset[str]) -> bool:
    """Whether a condition fails wherever a candidate is judged, so that what is under it does not run. `off`: false names."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(_fails_here(value, off) for value in test.values)
    if isinstance(test, ast.Name) and test.id in off:
        return True
    if isinstance(test, ast.Compare):
        return ast.dump(test) in _IS_SCRIPT
    first, _, last = _dotted(test.func if isinstance(test, ast.Call) else test).rpartition(".")
    return last in ("TYPE_CHECKING", *_ASK_FOR_FILES) or (last == "is_initialized" and "cuda" not in first)


_ASK_FOR_FILES = ("exists", "isfile", "isdir", "is_file", "is_dir")
"""A candidate finds no files."""
_SCRIPT_TESTS = [
    statement.value
    for statement in parse_python("__name__ == '__main__'\n'__main__' == __name__").body
    if isinstance(statement, ast.Expr)
]
_IS_SCRIPT = frozenset(map(ast.dump, _SCRIPT_TESTS))


def _imports(node: ast.stmt) -> bool:
    """Whether a statement imports, also by a name that is made at run time: `module = importlib.import_module(name)`."""
    value = node.value if isinstance(node, ast.Assign | ast.Expr | ast.Return) else None
    return isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(value, ast.Call) and _calls_import_module(value))


def _calls_import_module(node: ast.Call) -> bool:
    return _dotted(node.func) in ("importlib.import_module", "import_module")


def _module_named(node: ast.AST) -> str:
    """`triton.language` of `importlib.import_module("triton.language")`, which is as good as an import; '' of all else."""
    if not isinstance(node, ast.Call) or not _calls_import_module(node) or len(node.args) != 1 or node.keywords:
        return ""
    name = node.args[0].value if isinstance(node.args[0], ast.Constant) else None
    return name if isinstance(name, str) and not name.startswith(".") else ""


def _catches_import(handler: ast.ExceptHandler) -> bool:
    caught = ast.dump(handler.type) if handler.type else "Exception"
    return any(name in caught for name in ("ImportError", "ModuleNotFoundError", "'Exception'", "Exception"))


def _imported(used: list[ast.AST]) -> dict[str, str]:
    """Name in the module → what it is, in full, of every import that is made; one that may fail tells nothing."""
    names: dict[str, str] = {}
    for node in used:
        if isinstance(node, ast.Import):
            names |= {
                a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Assign) and (module := _module_named(node.value)):
            names |= {target.id: module for target in node.targets if isinstance(target, ast.Name)}
    return names


@lru_cache(maxsize=4096)  # `torch.empty` is in every candidate
def _reasons(dotted: str) -> tuple[str, ...]:
    """What is to be said against the use of a name."""
    return tuple(_name(dotted))


def _name(dotted: str) -> Iterator[str]:
    root, _, rest = dotted.partition(".")
    if root in _FORBIDDEN_MODULES:
        yield _FORBIDDEN_MODULES[root]
    if root in _HARMLESS_PARTS and rest and rest.partition(".")[0] not in _HARMLESS_PARTS[root]:
        yield _REACH[root]
    harmless = dotted in _HARMLESS_CALLS or f"{dotted}.".startswith(tuple(f"{name}." for name in _HARMLESS_HELPERS))
    for forbidden, reason in _FORBIDDEN_ATTRIBUTES.items() if not harmless else ():
        if dotted == forbidden or dotted.startswith(forbidden + "."):
            yield reason
    last = dotted.rpartition(".")[2]
    if last in ("load_inline", "inline_asm_elementwise"):
        yield _FORBIDDEN_NAMES[last]


def _dotted(node: ast.expr) -> str:
    """`torch.cuda.Stream` of an attribute of a name; '' of any other."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""
