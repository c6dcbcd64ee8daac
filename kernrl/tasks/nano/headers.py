"""What a reply leaves out, because its other lines say it: signatures, the arguments of launches, and lines that read axes.

    def k0():                                       @triton.jit
        ...                                         def k0(v0_ptr, v1_ptr, A: tl.constexpr, n_elements, BLOCK: tl.constexpr):
                                                        ...
    def forward():                          →       def forward(self, x0):
        v0 = F.linear(x0, p0)                           v0 = F.linear(x0, p0)
        v1 = torch.empty_like(v0)                       v1 = torch.empty_like(v0)
        k0[grid](n_elements=n, BLOCK=64)                A, B = x0.shape
                                                        k0[grid](v0, v1, A, n_elements=n, BLOCK=64)

A kernel reads `v0_ptr`: the launch passes `v0`. It says `A`: the launch passes the axis. Half of a model's mistakes were
names copied into such lists wrongly.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

from kernrl.syntax import parse_python
from kernrl.tasks.nano.axes import LETTERS

AXES = re.compile(r"^((?:[A-Z_], )*[A-Z_],?) = (\w+)\.shape$")
LAUNCH = re.compile(r"^(?P<head>\s*(?P<name>k\d+)\[.*\]\()(?P<arguments>[^\[\]]*)\)$")
HEADER = re.compile(r"^def (?P<name>k\d+)\(\):$", re.MULTILINE)
OPTIONS = ("num_warps", "num_stages", "num_ctas")
"""Keywords of a launch that are Triton's own."""

Shapes = Mapping[str, Sequence[str]]
"""Name of a value, in the order of the listing → its shape in the words of the listing."""


class MissingNameError(Exception):
    """A reply uses an axis that nothing in it has; the message says which."""


def shape_line(name: str, words: Sequence[str]) -> str:
    """The line that reads a tensor's axes: `A, _, C = v0.shape`."""
    names = [word if word in LETTERS else "_" for word in words]
    return f"{', '.join(names)}{',' if len(names) == 1 else ''} = {name}.shape"


def without_headers(kernels: Mapping[str, str], lines: Sequence[str], shapes: Shapes) -> tuple[list[str], list[str]]:
    """Kernels and lines of `forward` less what `with_headers` adds.

    Args:
        kernels: Name → source, in order.
        lines: The body of `forward`.
        shapes: Of the listing.
    """
    lines = _raw_names(kernels, lines)
    short = []
    for line in lines:
        found, launch = AXES.match(line), LAUNCH.match(line)
        if found and shape_line(found[2], shapes.get(found[2].removesuffix("_raw"), ())) == line:
            continue
        if launch:
            source = kernels[launch["name"]]
            given = _split(launch["arguments"])
            kept = []
            for parameter, argument in zip(_parameters(source), given, strict=False):
                if "=" not in argument and parameter != f"{argument}_ptr" and parameter not in LETTERS:
                    kept.append(f"{parameter}={argument}")
            kept += [argument for argument in given if "=" in argument]
            line = f"{launch['head']}{', '.join(kept)})"
        short.append(line)
    bodies = [f"def {name}():\n" + source.partition("):\n")[2] for name, source in kernels.items()]
    return bodies, short


def _raw_names(kernels: Mapping[str, str], lines: Sequence[str]) -> list[str]:
    """Lines in which a tensor is called as the one kernel calls it that reads it: `v0_raw`, if it lacks its bias."""
    wanted: dict[str, set[str]] = {}
    for line in lines:
        if launch := LAUNCH.match(line):
            for parameter, argument in zip(_parameters(kernels[launch["name"]]), _split(launch["arguments"]), strict=False):
                if parameter.endswith("_ptr") and argument.isidentifier():
                    wanted.setdefault(argument, set()).add(parameter.removesuffix("_ptr"))
    new = {name: next(iter(found)) for name, found in wanted.items() if len(found) == 1 and found != {name}}
    kept = {name for line in lines for name in re.findall(r"\w+", line)} - set(new)
    new = {name: to for name, to in new.items() if to not in kept and list(new.values()).count(to) == 1}
    if not new:
        return list(lines)
    words = re.compile(rf"\b(?:{'|'.join(new)})\b")
    return [words.sub(lambda m: new[m[0]], line) for line in lines]


def _parameters(source: str) -> list[str]:
    """Names of a kernel's parameters."""
    listed = source.partition("def ")[2].partition("(")[2].partition("):\n")[0]
    return [part.partition(":")[0] for part in _split(listed)]


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


def with_headers(
    kernels: Mapping[str, str], lines: Sequence[str], shapes: Shapes, held: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Whole kernels, and lines of `forward` with whole launches and the axes that they need.

    Args:
        kernels: Name → body, indented, in order.
        lines: The body of `forward`, at the top level.
        shapes: Of the listing.
        held: Names of the inputs and parameters.

    Raises:
        MissingNameError: An axis is used that no tensor so far has.
    """
    launches = {m["name"]: _split(m["arguments"]) for line in lines if (m := LAUNCH.match(line))}
    pointers, axes, sources = {}, {}, []
    for name, body in kernels.items():
        given = [a.partition("=")[0].strip() for a in launches.get(name, ()) if "=" in a]
        used = _free_names(body)
        pointers[name] = [n for n in used if n.endswith("_ptr") and n not in given]
        axes[name] = sorted(n for n in used if n in LETTERS and n not in given)
        options = [n for n in given if n not in OPTIONS]
        depths = _depths(body)
        sizes = [n if n in depths else f"{n}: tl.constexpr" for n in axes[name]]
        constants = [f"{n}: tl.constexpr" for n in options if n.isupper()]
        listed = [*pointers[name], *sizes, *(n for n in options if not n.isupper()), *constants]
        sources.append(f"@triton.jit\ndef {name}({', '.join(listed)}):\n{body}")
    whole: list[str] = []
    known: set[str] = set()
    live = [name for name in held if name in shapes]
    for line in lines:
        needed = [n for n in re.findall(r"\b[A-Z]\b", line) if n in LETTERS]
        launch = LAUNCH.match(line)
        if launch and launch["name"] in kernels:
            needed += axes[launch["name"]]
            arguments = [p.removesuffix("_ptr") for p in pointers[launch["name"]]]
            arguments += [*axes[launch["name"]], *_split(launch["arguments"])]
            line = f"{launch['head']}{', '.join(arguments)})"
        assigned = re.match(r"^(\w+(?:, \w+)*),? = ", line)
        targets = assigned[1].split(", ") if assigned else []
        for axis in needed:
            if axis in known or axis in targets:
                continue
            source = next((name for name in live if axis in shapes[name.removesuffix("_raw")]), None)
            if source is None:
                raise MissingNameError(f"nothing has the axis {axis} yet at `{line.strip():.60}`")
            words = shapes[source.removesuffix("_raw")]
            whole.append(line[: len(line) - len(line.lstrip())] + shape_line(source, words))
            known |= {word for word in words if word in LETTERS}
        whole.append(line)
        known |= {name for name in targets if name in LETTERS}
        fresh = [name for name in targets if name.removesuffix("_raw") in shapes and name not in live]
        live[_flowing(live) : _flowing(live)] = fresh
    return sources, whole


def _flowing(live: Sequence[str]) -> int:
    """How many names come before the first parameter: axes are read from what flows, if that has them."""
    return next((i for i, name in enumerate(live) if name.startswith("p")), len(live))


def _depths(body: str) -> set[str]:
    """Axes along which a kernel sums products in a loop. A loop of few turns, known when it is compiled, may be unrolled, which
    ptxas 12.8 does wrongly: the products are lost (see `verifier/plan/launchable.py`)."""
    ranges = re.findall(r"range\((.*)\):$", body, re.MULTILINE) if "tl.dot(" in body else []
    return {name for bounds in ranges for name in re.findall(r"\b[A-Z]\b", bounds)}


@lru_cache(maxsize=4096)  # many replies to a task have the same kernel
def _free_names(body: str) -> tuple[str, ...]:
    """Names that a kernel's body reads and does not assign, in order of their first use."""
    names = [n for n in ast.walk(parse_python(f"def kernel():\n{body}")) if isinstance(n, ast.Name)]
    assigned = {n.id for n in names if isinstance(n.ctx, ast.Store)}
    read = [n for n in names if isinstance(n.ctx, ast.Load) and n.id not in assigned]
    return tuple(dict.fromkeys(n.id for n in sorted(read, key=lambda n: (n.lineno, n.col_offset))))
