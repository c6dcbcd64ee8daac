"""Rows in a loop: a program takes row after row, and the loads of the next are under way while one is worked on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kernrl.tasks.solutions.from_graph.codegen.index_text import Flat
from kernrl.tasks.solutions.from_graph.codegen.layouts import Layout
from kernrl.tasks.solutions.from_graph.codegen.tile_sizes import MULTIPROCESSORS, SHARED_BYTES
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis

LEAST_STEPS = 2
"""With fewer steps a program has nothing to load ahead."""
MOST_WARPS = 32
"""Warps of a multiprocessor in all: more leave too few registers for a row."""


@dataclass(frozen=True, slots=True)
class Rows:
    """How rows are dealt out: numbers that stand in the launch."""

    rows: int
    """A step takes so many."""
    warps: int
    stages: int
    programs: int


def rows_of(width: int, count: int, wide_reads: int, stages: int) -> Rows | None:
    """How rows of so many elements, a power of two, are dealt out; None where there are too few of them to loop over.

    Args:
        wide_reads: Tensors of which a row is loaded for each row.
    """
    rows = max(1, min(16, 2048 // width))
    warps = max(1, min(16, rows * width // 512))
    held = max(1, wide_reads) * rows * width * 4
    while stages > 2 and held * stages > SHARED_BYTES:
        stages -= 1
    if held * stages > SHARED_BYTES:
        return None
    each = min(MOST_WARPS // warps, SHARED_BYTES // (held * stages), count // (rows * MULTIPROCESSORS * LEAST_STEPS))
    return Rows(rows, warps, stages, MULTIPROCESSORS * each) if each else None


def chain_layout(kept: list[Axis], over: list[Axis], several: bool) -> Layout:
    """One row or several, each whole, at the `row` that the loop has come to."""
    if not several:
        return Layout(
            Flat("row", kept),
            Flat("cols", over),
            "[BLOCK]",
            "tl.{op}({e}, axis=0)",
            over_mask="mask",
            both_mask="mask",
            over_lines=("cols = tl.arange(0, BLOCK)", "mask = cols < @over@"),
            reduced=set(over),
        )
    return Layout(
        Flat("row", kept),
        Flat("cols", over),
        "[ROWS, BLOCK]",
        "tl.{op}({e}, axis=1, keep_dims=True)",
        kept_mask="row < @total@",
        over_mask="cols < @over@",
        both_mask="mask",
        kept_lines=("row = start + tl.arange(0, ROWS)[:, None]", "mask = (row < @total@) & (cols < @over@)"),
        over_lines=("cols = tl.arange(0, BLOCK)[None, :]",),
        reduced=set(over),
    )


def chain_lines(lines: list[str], several: bool, stages: int) -> list[str]:
    """The loop over rows around the lines of one."""
    span = "tl.program_id(0), @total@, tl.num_programs(0)"
    if several:
        span = "tl.program_id(0) * ROWS, @total@, tl.num_programs(0) * ROWS"
    head = f"for {'start' if several else 'row'} in tl.range({span}, num_stages={stages}):"
    return ["@over@", head, "    @kept@", *("    " + line for line in lines)]


def hoisted(source: str) -> str:
    """A kernel whose loop over rows computes nothing that is the same for all of them."""
    lines = source.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("    for "))
    inside = lines[at + 1 :]
    moving = {"row", "start"} | {m[1] for line in inside if (m := ASSIGNED.match(line))}
    out: list[str] = []
    while True:
        fixed = [i for i, line in enumerate(inside) if (m := ASSIGNED.match(line)) and not moving & set(WORD.findall(m[2]))]
        if not fixed:
            return "\n".join([*lines[:at], *out, lines[at], *inside]) + "\n"
        for i in reversed(fixed):
            moving.discard(inside[i].split()[0])
        out += [inside[i][4:] for i in fixed]
        inside = [line for i, line in enumerate(inside) if i not in fixed]


ASSIGNED = re.compile(r"        (\w+) = (.*)$")
WORD = re.compile(r"\b\w+\b(?!=[^=])")
