"""nano's reply: a line for the style, kernels in the order in which they run, and `forward`, in the listing's names.

    # fused
    def k0():
        ...

    def forward():
        v0 = F.linear(x0, p0, p1)
        ...

`p0` and the like are parameters of the module: the assembly binds them by their path, and adds the constructor, imports,
the helpers that kernels call (`tanh`, `expm1` …) and what `headers.py` says. A plan of the kernels in front of them
made replies longer and no easier to predict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.nano.axes import LETTERS, AxisNames, axis_letters
from kernrl.tasks.nano.headers import without_headers
from kernrl.tasks.nano.listing import words_of
from kernrl.tasks.solutions.from_graph.lowering.pointwise_text import HELPERS
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError
from kernrl.tasks.solutions.from_graph.write_forward import Answer, Style, write_forward

RESERVED = {"self", "torch", "triton", "tl", "F", "math", "x", "n", *HELPERS}


def write_reply(graphs: Sequence[Graph], style: Style, precision: str) -> str:
    """The reply to a Graph, as `at_distinct_sizes` gives it, in one style, under one policy.

    Raises:
        CannotWriteError: There is no rule for some part of it.
    """
    return reply_of(graphs, style, answer_of(graphs, style, precision))


def answer_of(graphs: Sequence[Graph], style: Style, precision: str) -> Answer:
    """What `write_reply` writes, before it is shortened. Raises as that does."""
    plain = [_canonical(g) for g in graphs]
    letters = axis_letters(graphs)
    names = [x.value.name for x in plain[0].inputs]
    taken = RESERVED | {letter for letter in LETTERS if letter not in letters.values()}
    return write_forward(plain, style, names, taken, "F", partial(_names, letters), precision)


def reply_of(graphs: Sequence[Graph], style: Style, answer: Answer) -> str:
    """The text of an answer."""
    lines = [re.sub(r"\bself\.(p\d+)\b", r"\1", line) for line in answer.lines]
    names_of = {kernel.name: f"k{i}" for i, kernel in enumerate(answer.kernels)}
    named = re.compile(rf"\b(?:{'|'.join(names_of)})\b")
    sources = {names_of[k.name]: named.sub(lambda m: names_of[m[0]], k.source) for k in answer.kernels}
    lines = [named.sub(lambda m: names_of[m[0]], line) for line in lines]
    kernels, lines = without_headers(sources, lines, words_of(graphs))
    forward = "\n".join(f"    {line}" for line in lines)
    return "\n".join([f"# {style.name}", "\n".join(kernels) + f"\ndef forward():\n{forward}\n"])


def _names(letters: dict[tuple[int, ...], str], taken: set[str]) -> AxisNames:
    return AxisNames(taken, letters=letters)


def _canonical(graph: Graph) -> Graph:
    """Parameters under their own names, and outputs as a plain sequence: the assembly knows paths and nesting."""
    return replace(
        graph,
        inputs=tuple(replace(x, stride=()) for x in graph.inputs),
        parameters=tuple(replace(p, path=p.value.name, data=()) for p in graph.parameters),
        structure=", ".join("*" * len(graph.outputs)),
    )


__all__ = ["CannotWriteError", "write_reply"]
