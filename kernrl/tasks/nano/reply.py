"""nano's reply: a line for the style, kernels in the order in which they run, and `forward`, in the listing's names.

    # fused
    @triton.jit
    def k0(v0_ptr, v2_ptr, C, BLOCK: tl.constexpr):
        ...

    def forward(self, x0, p0, p1):
        v0 = F.linear(x0, p0, p1)
        ...

`p0` and the like are parameters of the module: the assembly binds them by their path, and adds the constructor, imports
and the helpers that kernels call (`tanh`, `expm1` …). A plan of the kernels in front of them
made replies longer and no easier to predict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.nano.axes import LETTERS, AxisNames, axis_letters
from kernrl.tasks.solutions.from_graph.forward import Answer, Style, write_forward
from kernrl.tasks.solutions.from_graph.points import HELPERS
from kernrl.tasks.solutions.from_graph.sizes import CannotWriteError

RESERVED = {"self", "torch", "triton", "tl", "F", "math", "x", "n", *HELPERS}


def write_reply(graphs: Sequence[Graph], style: Style) -> str:
    """The reply to a Graph, as `spread` gives it, in one style.

    Raises:
        CannotWriteError: There is no rule for some part of it.
    """
    plain = [_canonical(g) for g in graphs]
    letters = axis_letters(graphs)
    names = [x.value.name for x in plain[0].inputs]
    taken = RESERVED | {letter for letter in LETTERS if letter not in letters.values()}
    answer = write_forward(plain, style, names, taken, "F", partial(_names, letters))
    lines = [re.sub(r"\bself\.(p\d+)\b", r"\1", line) for line in answer.lines]
    kernels, lines = _renamed(answer, lines)
    arguments = ", ".join(["self", *names, *(p.value.name for p in plain[0].parameters)])
    forward = "\n".join(f"    {line}" for line in lines)
    return "\n".join([f"# {style.name}", "\n".join(kernels) + f"\ndef forward({arguments}):\n{forward}\n"])


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


def _renamed(answer: Answer, lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Kernels are k0, k1 … in order, and each is given every axis that `forward` has read off by then."""
    names = {kernel.name: f"k{i}" for i, kernel in enumerate(answer.kernels)}
    sources = {names[kernel.name]: KERNEL.sub(lambda m: names[m[0]], kernel.source) for kernel in answer.kernels}
    known: dict[str, None] = {}
    out = []
    for line in lines:
        line = KERNEL.sub(lambda m: names[m[0]], line)
        if AXES.match(line):
            known |= dict.fromkeys(re.findall(r"\b[A-Z]\b", line.partition(" = ")[0]))
        elif launch := LAUNCH.match(line):
            name = launch["name"]
            line = launch["head"] + _with_axes(launch["arguments"], sorted(known)) + ")"
            head, _, body = sources[name].partition("):\n")
            start, _, parameters = head.partition(f"def {name}(")
            listed = _with_axes(parameters, [f"{axis}: tl.constexpr" for axis in sorted(known)])
            sources[name] = f"{start}def {name}({listed}):\n{body}"
        out.append(line)
    return list(sources.values()), out


KERNEL = re.compile(r"\b(?:fused|reduce|pointwise)_kernel\w*")
AXES = re.compile(r"^[A-Z_](?:, [A-Z_])*,? = ")
LAUNCH = re.compile(r"^(?P<head>(?P<name>k\d+)\[.*\]\()(?P<arguments>.*)\)$")


def _with_axes(arguments: str, axes: Sequence[str]) -> str:
    """Arguments of a launch or parameters of a kernel, with these axes in the place of its own."""
    parts = [part for part in _split(arguments) if part.partition(":")[0] not in LETTERS]
    at = next((i for i, part in enumerate(parts) if re.match(r"(BLOCK|ROWS|num_warps)", part)), len(parts))
    return ", ".join([*parts[:at], *axes, *parts[at:]])


def _split(text: str) -> list[str]:
    """At the commas that no bracket encloses."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


__all__ = ["CannotWriteError", "write_reply"]
