"""Variants of a candidate: the same text with another block size, warp count, stage count or number of rows.

Only whole numbers that stand at a kernel's launch are changed, as text: `BLOCK=1024`, `num_warps=4`. A block size also
stands in the grid (`triton.cdiv(n, 1024)`), in the blocks of tensor descriptors, and wherever the number of tiles is used
besides, as in the size of what they write; all of them change together.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from kernrl.syntax import parse_python

WARPS = (1, 2, 4, 8, 16, 32)
STAGES = (1, 2, 3, 4, 5, 6)
LEAST_BLOCK, MOST_BLOCK = 16, 16384
MOST_ROWS = 64

Step = tuple[str, str]
"""What is changed, and which way: `("num_warps", "up")`. What was seen of one step tells of others of its kind."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A candidate's text with one number changed."""

    source: str
    step: Step
    name: str
    """`num_warps=8`, and of which kernel where a file launches several."""


def variants(source: str) -> Iterator[Variant]:
    """Every text that is one step away, each knob of each launch up and down; none of a text that launches nothing."""
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    launches = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_launch(node)]
    counts = _tile_counts(tree, launches)
    looping = {f.name for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and any(map(_is_loop, ast.walk(f)))}
    launches.sort(key=lambda node: (node.lineno, node.col_offset))
    for launch in launches:
        where = f" of {ast.unparse(launch.func.value)}" if len(launches) > 1 else ""  # pyright: ignore[reportAttributeAccessIssue]
        described = _described(tree, launch)
        for keyword in launch.keywords:
            value = keyword.value
            if keyword.arg is None or not isinstance(value, ast.Constant) or type(value.value) is not int:
                continue
            for way, number in _steps(keyword.arg, value.value):
                edits = [(value, str(number)), *_in_grid(launch, keyword.arg, value.value, number, counts)]
                edits += [(length, str(number)) for length in described.get(keyword.arg, ())]
                changed = _edited(source, edits)
                yield Variant(changed, (_kind(keyword.arg), way), f"{keyword.arg}={number}{where}")
        for name, number in _missing(launch):
            if name == "num_stages" and ast.unparse(launch.func.value) not in looping:  # pyright: ignore[reportAttributeAccessIssue]
                continue  # stages overlap the turns of a loop
            changed = _with_keyword(source, launch, f"{name}={number}")
            yield Variant(changed, (name, "up"), f"{name}={number}{where}")


def _is_launch(node: ast.AST) -> bool:
    """`kernel[grid](...)`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)


def _is_loop(node: ast.AST) -> bool:
    return isinstance(node, ast.For | ast.While)


def _kind(name: str) -> str:
    """Block sizes of any name are one kind."""
    return name if name in ("num_warps", "num_stages") else "rows" if _is_rows(name) else "block"


def _is_rows(name: str) -> bool:
    return name.lower() in ("rows", "rows_per_program", "group_m", "group_size_m")


def _steps(name: str, value: int) -> Iterator[tuple[str, int]]:
    """The next number in each direction; none for a keyword that is no knob, such as a shape that is handed over."""
    if name in ("num_warps", "num_stages"):
        ladder = WARPS if name == "num_warps" else STAGES
        if value in ladder:
            at = ladder.index(value)
            yield from ((way, ladder[to]) for way, to in (("up", at + 1), ("down", at - 1)) if 0 <= to < len(ladder))
    elif value > 0 and value & (value - 1) == 0:  # a block is a power of two
        if _is_rows(name):
            yield from ((way, n) for way, n in (("up", 2 * value), ("down", value // 2)) if 1 <= n <= MOST_ROWS)
        elif re.match(r"BLOCK|TILE|CHUNK", name, re.IGNORECASE):
            yield from ((way, n) for way, n in (("up", 2 * value), ("down", value // 2)) if LEAST_BLOCK <= n <= MOST_BLOCK)


def _missing(launch: ast.Call) -> Iterator[tuple[str, int]]:
    """Settings of Triton's own that a launch leaves at their defaults (4 warps, 3 stages)."""
    given = {keyword.arg for keyword in launch.keywords}
    if None not in given:  # `**options` may hold them
        yield from ((name, n) for name, n in (("num_warps", 8), ("num_stages", 2)) if name not in given)


def _on_grid(name: str) -> bool:
    """Whether programs share an axis out by this number; a product's inner axis is walked by each of them."""
    return _kind(name) in ("block", "rows") and not name.upper().endswith("_K")


def _is_count(node: ast.AST) -> bool:
    """`triton.cdiv(n, 1024)`: how many tiles there are."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("cdiv") and len(node.args) == 2


def _tile_counts(tree: ast.AST, launches: list[ast.Call]) -> dict[str, list[ast.Call]]:
    """Text → where it stands outside of grids: what is written tile by tile has a size that counts them."""
    in_grids = {id(n) for launch in launches if isinstance(launch.func, ast.Subscript) for n in ast.walk(launch.func.slice)}
    found: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_count(node) and id(node) not in in_grids:
            found.setdefault(ast.unparse(node), []).append(node)
    return found


def _in_grid(
    launch: ast.Call, name: str, value: int, number: int, counts: dict[str, list[ast.Call]]
) -> list[tuple[ast.expr, str]]:
    """The same number where the grid divides by it, `triton.cdiv(n, 1024)`, and where that count stands besides.

    Two blocks of one size divide two axes; the grid has them in the order of the keywords.
    """
    if not _on_grid(name):
        return []
    assert isinstance(launch.func, ast.Subscript)
    calls = [n for n in ast.walk(launch.func.slice) if isinstance(n, ast.Call) and _is_count(n)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    same = [c for c in calls if isinstance(c.args[1], ast.Constant) and c.args[1].value == value]
    knobs = [k.arg for k in launch.keywords if isinstance(k.value, ast.Constant) and k.value.value == value]
    knobs = [k for k in knobs if k and _on_grid(k)]
    mine = [same[knobs.index(name)]] if len(same) == len(knobs) > 1 else same
    others = {ast.unparse(call) for call in same if call not in mine}
    besides = [call for text in {ast.unparse(call) for call in mine} - others for call in counts.get(text, ())]
    return [(call.args[1], str(number)) for call in [*mine, *besides]]


def _described(tree: ast.AST, launch: ast.Call) -> dict[str, list[ast.expr]]:
    """Keyword of a launch → the lengths that it stands for in blocks of tensor descriptors which the launch is passed.

    `x_desc.load([pid * BLOCK_M, start])` in the kernel says which is which; `start` goes on by the step of its loop.
    """
    kernel = ast.unparse(launch.func.value)  # pyright: ignore[reportAttributeAccessIssue]
    function = next((f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) and f.name == kernel), None)
    if function is None:
        return {}
    made: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        call = node.value if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else None
        if call and call.args and "TensorDescriptor" in ast.unparse(call.func) and isinstance(call.args[-1], ast.List):
            made[ast.unparse(node.targets[0])] = call.args[-1].elts  # pyright: ignore[reportAttributeAccessIssue]
    blocks = {p.arg: made.get(ast.unparse(given), []) for p, given in zip(function.args.args, launch.args, strict=False)}
    steps = {ast.unparse(f.target): f.iter.args[2] for f in ast.walk(function) if isinstance(f, ast.For) and _has_step(f.iter)}
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "load" and node.args:
            places = node.args[0].elts if isinstance(node.args[0], ast.List) else []
            for place, length in zip(places, blocks.get(ast.unparse(node.func.value), []), strict=False):
                for name in [n.id for n in ast.walk(steps.get(ast.unparse(place), place)) if isinstance(n, ast.Name)]:
                    found.setdefault(name, []).append(length)
    return found


def _has_step(iterated: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(iterated, ast.Call) and len(iterated.args) == 3


def _edited(source: str, edits: list[tuple[ast.expr, str]]) -> str:
    lines = source.encode().split(b"\n")  # columns count bytes
    for node, text in sorted(edits, key=lambda edit: (edit[0].lineno, edit[0].col_offset), reverse=True):
        row = node.lineno - 1
        lines[row] = lines[row][: node.col_offset] + text.encode() + lines[row][node.end_col_offset :]
    return b"\n".join(lines).decode()


def _with_keyword(source: str, launch: ast.Call, text: str) -> str:
    """The call with one more keyword, after the last argument."""
    last = max(
        (*launch.args, *(k.value for k in launch.keywords)), key=lambda n: (n.end_lineno, n.end_col_offset), default=None
    )
    if last is None:
        return source
    lines = source.encode().split(b"\n")
    row, at = (last.end_lineno or 1) - 1, last.end_col_offset or 0
    lines[row] = lines[row][:at] + f", {text}".encode() + lines[row][at:]
    return b"\n".join(lines).decode()
