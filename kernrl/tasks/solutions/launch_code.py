"""Joins a kernel's body with the lines of `forward` that launch it: both list the same arguments in the same order."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernrl.tasks.grammar.program import Shape, Step

LETTERS = {1: ("L",), 2: ("H", "W"), 3: ("D", "H", "W")}


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel and its call."""

    source: str
    host: tuple[str, ...]
    """Lines of `forward`; they read `x` and leave the result in `out`."""
    steps: tuple[Step, ...]


def host_dims(shape: Shape) -> tuple[str, ...]:
    """Host variables for the dimensions of a value."""
    if shape.layout == "grid":
        return ("B", "C", *LETTERS[len(shape.dims) - 2])
    return {1: ("M",), 2: ("M", "N"), 3: ("B", "M", "N")}[len(shape.dims)]


def pixels(shape: Shape) -> str:
    """Host expression of the number of pixels of a channel."""
    return " * ".join(host_dims(shape)[2:])


def out_line(before: Shape, after: Shape) -> str:
    """The line that allocates the result. A dimension that changed without becoming 1 is `O` and its letter."""
    if before.dims == after.dims:
        return "out = torch.empty_like(x)"
    letters = host_dims(before)
    kept = []
    for index, dim in enumerate(after.dims):
        same = dim == before.dims[index]
        kept.append(letters[index] if same else "1" if dim == "1" else f"O{letters[index]}")
    dims = ", ".join(kept) + ("," if len(kept) == 1 else "")
    return f"out = torch.empty(({dims}), device=x.device, dtype=x.dtype)"


def launch(
    name: str,
    body: Sequence[str],
    steps: Sequence[Step],
    *,
    sizes: Mapping[str, str],
    blocks: Mapping[str, str],
    grid: str,
    allocate: Sequence[str],
    hosts: Mapping[str, str] | None = None,
    letters: Sequence[str],
    options: str = "",
) -> Launch:
    """Write `@triton.jit` around `body` and call it.

    Pointers are the `…_ptr` names of the body in order of appearance, sizes those of `sizes` and block constants those
    of `blocks` that it names. `hosts` maps pointers to host expressions where the operands of `steps` do not; `letters`
    are the host variables of `x.shape`, unpacked when the call names one.
    """
    text = "\n".join(body)
    words = set(re.findall(r"\w+", text))
    operands = {operand.name: operand.host for step in steps for operand in step.operands.values()}
    host_of = {"x": "x", "out": "out", **operands, **(hosts or {})}
    pointers = sorted(dict.fromkeys(re.findall(r"(\w+)_ptr", text)), key=lambda p: p in ("out", "mean", "rstd"))
    scalars = [size for size in sizes if size in words]
    constants = [block for block in blocks if block in words]
    parameters = [f"{p}_ptr" for p in pointers] + scalars + [f"{c}: tl.constexpr" for c in constants]
    arguments = [host_of[p] for p in pointers] + [sizes[s] for s in scalars] + [f"{c}={blocks[c]}" for c in constants]
    arguments += [options] if options else []
    source = "\n".join(["@triton.jit", f"def {name}({', '.join(parameters)}):", *(f"    {line}" for line in body), ""])
    call = f"{name}[{grid}]({', '.join(arguments)})"
    needs = set(re.findall(r"\b[A-Z]\b", " ".join([call, *allocate])))
    unpack = [f"{', '.join(letters)} = x.shape"] if needs & set(letters) else []
    return Launch(source, (*unpack, *allocate, call), tuple(steps))
