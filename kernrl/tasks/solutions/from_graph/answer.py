"""The file of an answer: the reference's own imports, constants, helpers and `__init__`, with new kernels and `forward`."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable
from dataclasses import dataclass

from kernrl.syntax import parse_python
from kernrl.tasks.graph.graph import Input
from kernrl.tasks.solutions.from_graph.lowering.pointwise_text import HELPERS, helpers_in
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError
from kernrl.tasks.solutions.from_graph.write_forward import Answer

CONTRACT = ("get_inputs", "get_init_inputs", "INPUT_SETS")
Definition = ast.ClassDef | ast.FunctionDef
"""Parts of a reference that an answer does without."""


@dataclass
class Source:
    """A reference's source, cut into what an answer keeps."""

    kept: list[ast.stmt]
    """Imports, constants and helpers that the class needs, in order."""
    model: ast.ClassDef
    """`Model` as `ModelNew`, without `forward`."""
    signature: ast.arguments
    """Arguments of `forward`."""

    @property
    def taken(self) -> set[str]:
        """Names of the file's top level, and the arguments of `forward`."""
        names = {n for statement in self.kept for n in _binds(statement)}
        a = self.signature
        every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *([a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else [])]
        return names | {arg.arg for arg in every} | {"ModelNew", "torch", "triton", "tl", "F", "TensorDescriptor", "self"}

    @property
    def functional(self) -> str:
        """How the file calls `torch.nn.functional`: `F`, where the author means nothing else by it."""
        theirs = [s for s in self.kept if "F" in _binds(s)]
        return (
            "F"
            if all("torch.nn.functional" in ast.unparse(s) or "functional as F" in ast.unparse(s) for s in theirs)
            else "torch.nn.functional"
        )

    def argument(self, held: Input) -> str:
        """Python of an input of the Graph."""
        first, *rest = held.place
        a = self.signature
        positional = [arg.arg for arg in (*a.posonlyargs, *a.args)][1:]
        if isinstance(first, str):
            text = first
        elif first < len(positional):
            text = positional[first]
        elif a.vararg:
            text = f"{a.vararg.arg}[{first - len(positional)}]"
        else:
            raise CannotWriteError("an input is no argument of forward")
        return text + "".join(f"[{part!r}]" for part in rest)


def read_source(source: str) -> Source:
    """Cut a reference's source."""
    body = parse_python(source).body
    classes = {s.name: s for s in body if isinstance(s, ast.ClassDef)}
    alias = next((s for s in body if isinstance(s, ast.Assign) and "Model" in _binds(s)), None)  # Model = GatedNorm
    name = alias.value.id if alias is not None and isinstance(alias.value, ast.Name) else "Model"
    model = classes.get(name)
    if model is None:
        raise CannotWriteError("the source has no class Model")
    forward, of = None, model
    while forward is None and of is not None:
        forward = next((s for s in of.body if isinstance(s, ast.FunctionDef) and s.name == "forward"), None)
        of = next((classes[b.id] for b in of.bases if isinstance(b, ast.Name) and b.id in classes), None)
    if forward is None:
        raise CannotWriteError("Model has no forward")
    others = [s for s in body if s is not model and s is not alias and not (set(_binds(s)) & set(CONTRACT))]
    others = [s for s in others if not _is_text(s) and not _is_main(s)]
    new = _Renamed({"Model", name}).visit(copy.deepcopy(model))
    new.body = _reachable([s for s in new.body if not (isinstance(s, ast.FunctionDef) and s.name == "forward")], {"__init__"})
    new.body = [s for s in new.body if not _is_text(s)]
    kept = _needed([_lean(s) for s in others], new)
    if any(_runs_modules(s) for s in (*kept, new)):
        kept = _needed(others, new)
    return Source(kept, new, forward.args)


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.name = "ModelNew" if node.name in self._names else node.name
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name("ModelNew", node.ctx), node) if node.id in self._names else node


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_main(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def _runs_modules(statement: ast.stmt) -> bool:
    """What it makes it may also run, and so the forward of a helper: a parametrization, or a dry run for a size."""
    calls = [n.func for n in ast.walk(statement) if isinstance(n, ast.Call)]
    given = {n.arg for n in ast.walk(statement) if isinstance(n, ast.arg)}
    given |= {ast.unparse(n) for n in ast.walk(statement) if isinstance(getattr(n, "ctx", None), ast.Store)}
    return any(
        isinstance(f, ast.Call | ast.Subscript) or ast.unparse(f) in given or "parametriz" in ast.unparse(f) for f in calls
    )


def _lean(statement: ast.stmt) -> ast.stmt:
    """A helper module without its forward: nothing calls it."""
    is_module = isinstance(statement, ast.ClassDef) and any(
        isinstance(s, ast.FunctionDef) and s.name == "forward" for s in statement.body
    )
    if not is_module:
        return statement
    lean = copy.deepcopy(statement)
    assert isinstance(lean, ast.ClassDef)
    without = [s for s in lean.body if not (isinstance(s, ast.FunctionDef) and s.name == "forward") and not _is_text(s)]
    lean.body = _reachable(without, {"__init__"}) or [ast.Pass()]
    return lean


def _reachable(body: list[ast.stmt], roots: set[str]) -> list[ast.stmt]:
    """Statements of a class, less the methods that nothing kept names."""
    kept = [s for s in body if not isinstance(s, ast.FunctionDef) or s.name in roots or s.name.startswith("__")]
    while True:
        words = {n.attr for s in kept for n in ast.walk(s) if isinstance(n, ast.Attribute)}
        words |= {n.id for s in kept for n in ast.walk(s) if isinstance(n, ast.Name)}
        more = [s for s in body if isinstance(s, ast.FunctionDef) and s.name in words and s not in kept]
        if not more:
            return [s for s in body if s in kept]
        kept += more


def _binds(statement: ast.stmt) -> list[str]:
    """Names that a top-level statement gives."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [(a.asname or a.name).partition(".")[0] for a in statement.names]
    return [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


def _words(statement: ast.AST) -> set[str]:
    """Names that a statement reads of the file's top level: no arguments of its functions."""
    found: set[str] = set()

    def look(node: ast.AST, own: set[str]) -> None:
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            for outside in (*node.args.defaults, *node.args.kw_defaults, *getattr(node, "decorator_list", [])):
                if outside is not None:
                    look(outside, own)
            inner = own | {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
            for a in ast.walk(node.args):
                if isinstance(a, ast.arg) and a.annotation:
                    look(a.annotation, own)
            for part in node.body if isinstance(node.body, list) else [node.body]:
                look(part, inner)
            return
        if isinstance(node, ast.Name) and node.id not in own:
            found.add(node.id)
        for child in ast.iter_child_nodes(node):
            look(child, own)

    look(statement, set())
    return found


def _needed(others: list[ast.stmt], model: ast.ClassDef) -> list[ast.stmt]:
    """The statements that the class needs, and what those need."""
    words, kept = _words(model), []
    while True:
        more = [s for s in others if s not in kept and (set(_binds(s)) & words or not _binds(s) or _is_future(s))]
        if not more:
            break
        kept += more
        words |= {w for s in more for w in _words(s)}
    trimmed = []
    for s in others:
        if s in kept:
            trimmed.append(_only(s, words) if isinstance(s, ast.Import | ast.ImportFrom) and not _is_future(s) else s)
    return trimmed


def _is_future(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _only(statement: ast.Import | ast.ImportFrom, words: set[str]) -> ast.stmt:
    lean = copy.deepcopy(statement)
    lean.names = [a for a in lean.names if (a.asname or a.name).partition(".")[0] in words]
    return lean


WIDTH = 118


def write_answer(source: Source, answer: Answer) -> str:
    """The complete file."""
    kernels = "\n\n".join(k.source for k in answer.kernels)
    helpers = "\n\n".join(HELPERS[name] for name in _helpers(kernels))
    forward = "\n".join("        " + part for line in answer.lines for part in _wrapped(line))
    model = copy.deepcopy(source.model)
    if not model.body:
        model.body = [ast.Pass()]
    text = ast.unparse(model).rstrip()
    text = text.removesuffix("\n    pass")
    text += f"\n\n    def forward({ast.unparse(_plain(source.signature))}):\n{forward}\n"
    rest = [s for s in source.kept if not isinstance(s, ast.Import | ast.ImportFrom)]
    parts = [_imports(source, forward), "\n".join(ast.unparse(s) for s in rest if not isinstance(s, Definition))]
    parts += [ast.unparse(s) for s in rest if isinstance(s, Definition)] if not _mixed(rest) else []
    if _mixed(rest):
        parts[1] = "\n\n".join(ast.unparse(s) for s in rest)
    parts += [helpers, kernels, text]
    return "\n\n\n".join(p.strip("\n") for p in parts if p.strip()) + "\n"


def _mixed(statements: Iterable[ast.stmt]) -> bool:
    """Some constant stands below a definition, and may need it."""
    kinds = [isinstance(s, Definition) for s in statements]
    return kinds != sorted(kinds)


def _plain(arguments: ast.arguments) -> ast.arguments:
    """A signature without annotations, which may name what is not kept."""
    bare = copy.deepcopy(arguments)
    for arg in ast.walk(bare):
        if isinstance(arg, ast.arg):
            arg.annotation = None
    return bare


def _helpers(text: str) -> list[str]:
    found = helpers_in(text)
    more = [h for name in found for h in helpers_in(HELPERS[name].partition("\n    ")[2]) if h not in found]
    return [*more, *found]


def _imports(source: Source, forward: str) -> str:
    theirs = [ast.unparse(s) for s in source.kept if isinstance(s, ast.Import | ast.ImportFrom)]
    wanted = ["import torch", "import triton", "import triton.language as tl"]
    if "F." in forward and source.functional == "F":
        wanted.insert(1, "import torch.nn.functional as F")
    if "TensorDescriptor" in forward:
        wanted.append("from triton.tools.tensor_descriptor import TensorDescriptor")
    if "math." in forward:
        wanted.insert(0, "import math")
    future = [line for line in theirs if "__future__" in line]
    if any(
        line.replace("from torch.nn import functional as F", "import torch.nn.functional as F")
        == "import torch.nn.functional as F"
        for line in theirs
    ):
        wanted = [w for w in wanted if not w.endswith("as F")]
    return "\n".join([*future, *dict.fromkeys([*(line for line in theirs if line not in future), *wanted])])


def _wrapped(line: str) -> list[str]:
    """A long call with its arguments on a line of their own."""
    if len(line) <= WIDTH - 8 or not line.endswith(")"):
        return [line]
    depth = 0
    for at in range(len(line) - 1, -1, -1):
        depth += (line[at] == ")") - (line[at] == "(")
        if depth == 0:
            return [line[: at + 1], "    " + line[at + 1 : -1], ")"]
    return [line]
