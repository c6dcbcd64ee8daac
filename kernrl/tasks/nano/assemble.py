"""From a reply of nano to the candidate's file: the reference's own constructor, imports and helpers, the reply's kernels
and `forward`, with the headers and launches that a reply leaves out. Parameters are bound by the path that the Graph gives,
inputs by their place among forward's arguments.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Set
from dataclasses import dataclass

from kernrl.syntax import parse_python
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.nano.headers import MissingNameError, Shapes, with_headers
from kernrl.tasks.solutions.from_graph.answer import Source, write_answer
from kernrl.tasks.solutions.from_graph.codegen.assembly import Kernel
from kernrl.tasks.solutions.from_graph.write_forward import Answer, beside, bound


class MalformedReplyError(Exception):
    """A reply of which no candidate can be made; the message says why, in one sentence."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply, read."""

    kernels: dict[str, str]
    """Name → body of each kernel, in order."""
    lines: tuple[str, ...]
    """Body of `forward` without its return, indented as at the top level."""
    returned: tuple[str, ...]
    """Python of what it returns, in order."""


def read_reply(text: str) -> Reply:
    """A reply's parts.

    Raises:
        MalformedReplyError: It is no Python, or something else than kernels and one `forward` after them.
    """
    if not text.strip():
        raise MalformedReplyError("the reply is empty")
    try:
        body = parse_python(text).body
    except SyntaxError as error:
        raise MalformedReplyError(f"line {error.lineno} of the reply is no Python: {error.msg}") from None
    if not body or not isinstance(body[-1], ast.FunctionDef) or body[-1].name != "forward":
        raise MalformedReplyError("the reply does not end with `def forward`")
    *kernels, forward = body
    for part in kernels:
        if not isinstance(part, ast.FunctionDef) or not re.fullmatch(r"k\d+", part.name):
            what = ast.unparse(part).partition("\n")[0]
            raise MalformedReplyError(f"line {part.lineno} of the reply is neither a kernel nor `forward`: {what:.60}")
    if len({part.name for part in kernels if isinstance(part, ast.FunctionDef)}) < len(kernels):
        raise MalformedReplyError("two kernels of the reply have one name")
    assert isinstance(forward, ast.FunctionDef)
    *statements, last = forward.body
    if not isinstance(last, ast.Return) or last.value is None:
        raise MalformedReplyError("`forward` does not end with what it returns")
    rows = text.splitlines()
    lines = rows[statements[0].lineno - 1 : statements[-1].end_lineno] if statements else []
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    returned = last.value.elts if isinstance(last.value, ast.Tuple) else [last.value]
    return Reply(
        kernels={
            k.name: "\n".join(rows[k.body[0].lineno - 1 : k.end_lineno]) + "\n"
            for k in kernels
            if isinstance(k, ast.FunctionDef)
        },
        lines=tuple(line[indent:] for line in lines),
        returned=tuple(map(ast.unparse, returned)),
    )


def assemble(source: Source, graph: Graph, shapes: Shapes, text: str) -> str:
    """The candidate's file.

    Args:
        source: The reference, cut by `read_source`.
        graph: The reference's, whose listing was the prompt.
        shapes: Shapes in the listing's words, from `words_of`.
        text: nano's reply.

    Raises:
        MalformedReplyError: As `read_reply`, or it returns other than as many values as the Graph, or uses an axis that
            nothing has.
        CannotWriteError: An input is no argument of the reference's forward.
    """
    reply = read_reply(text)
    if len(reply.returned) != len(graph.outputs):
        raise MalformedReplyError(f"`forward` returns {len(reply.returned)} values in place of {len(graph.outputs)}")
    held = [x.value.name for x in (*graph.inputs, *graph.parameters)]
    try:
        kernels, body = with_headers(reply.kernels, reply.lines, shapes, held)
    except MissingNameError as error:
        raise MalformedReplyError(str(error)) from None
    values = iter(reply.returned)
    returned = "return " + "".join(next(values) if c == "*" else c for c in graph.structure)
    read = set(re.findall(r"\b\w+\b", "\n".join([*body, returned])))
    lines = [*_bindings(source, graph, read), *body, returned]
    if source.functional != "F":
        lines = [re.sub(r"\bF\.", f"{source.functional}.", line) for line in lines]
    if clash := {name for name in source.taken if re.fullmatch(r"k\d+", name)}:
        word = re.compile(rf"\b(?:{'|'.join(clash)})\b(?=[\[(])")
        lines, kernels = ([word.sub(r"kernel_\g<0>", part) for part in parts] for parts in (lines, kernels))
    made = [Kernel("", text, [], [], [], "", {}) for text in kernels]
    return write_answer(source, Answer(made, lines))


def _bindings(source: Source, graph: Graph, names: Set[str]) -> list[str]:
    """Lines that give the listing's inputs and parameters their names; inputs at once, since they may swap names."""
    read = [x for x in graph.inputs if x.value.name in names]
    given = [source.argument(x) + (".contiguous()" if x.stride else "") for x in read]
    lines = []
    if [x.value.name for x in read] != given:
        lines.append(f"{', '.join(x.value.name for x in read)} = {', '.join(given)}")
    for p in graph.parameters:
        name = p.value.name
        if name not in names:
            continue
        if p.kind == "constant":
            lines.insert(0, f"{name} = {beside(p, source.argument(graph.inputs[0]))}")
        else:
            lines.append(f"{name} = {bound(p.path)}")
    return lines
