"""Tiles: how a kernel's programs are laid over its space. Marks such as `@over@` are sizes, written in at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernrl.tasks.solutions.from_graph.codegen.index_text import Flat
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis
from kernrl.tasks.solutions.from_graph.lowering.sizes import Size, times


@dataclass
class Layout:
    """A tile: flat indices, their masks, and how to reduce."""

    kept: Flat
    over: Flat | None
    shape: str
    fold_text: str = ""
    kept_mask: str = ""
    over_mask: str = ""
    both_mask: str = ""
    kept_lines: Sequence[str] = ()
    over_lines: Sequence[str] = ()
    reduced: set[Axis] = field(default_factory=set)
    across: Flat | None = None
    """The second side of a plane of elements that two tensors hold in other orders."""
    planes_last: bool = False
    """Planes are the grid's last axis."""

    @property
    def flats(self) -> list[Flat]:
        """Every flat index."""
        return [f for f in (self.kept, self.over, self.across) if f]

    def mask(self, axes: set[Axis]) -> str:
        """The mask of elements that vary along these axes."""
        if self.across and self.over:
            sides = bool(axes & set(self.over.axes)), bool(axes & set(self.across.axes))
            return {(True, True): "mask", (True, False): self.over_mask, (False, True): self.kept_mask}.get(sides, "")
        across = bool(axes & self.reduced)
        along = bool(axes - self.reduced)
        if across and along:
            return self.both_mask
        return self.over_mask if across else self.kept_mask if along else ""

    def fold(self, op: str, text: str) -> str:
        """A reduction over the tile's reduced side."""
        return self.fold_text.format(op=op, e=text)


def flat_layout(axes: list[Axis]) -> Layout:
    """A vector of elements."""
    return Layout(
        Flat("offs", axes),
        None,
        "[BLOCK]",
        kept_mask="mask",
        kept_lines=("offs = @start@ + tl.arange(0, BLOCK)", "mask = offs < @total@"),
    )


def plane_layout(rest: list[Axis], loads: list[Axis], stores: list[Axis], *, last: bool = False) -> Layout:
    """A tile along the axes that loads and stores have innermost, so that both touch neighbours in memory.

    Args:
        last: Planes are the grid's last axis, so that programs next to each other work on one, and `i` is the tile's, so that
            threads next to each other load neighbours even where Triton cannot tell them, as behind a window's stride.
    """
    (plane, i, j), (rows, columns) = ((2, 0, 1), "ji") if last else ((0, 1, 2), "ij")
    spread = {rows: "[:, None]", columns: "[None, :]"}
    return Layout(
        Flat("plane", rest),
        Flat("i", loads),
        f"[BLOCK_{rows.upper()}, BLOCK_{columns.upper()}]",
        kept_mask="j < @across@",
        over_mask="i < @over@",
        kept_lines=(
            f"plane = tl.program_id({plane})",
            f"i = tl.program_id({i}) * BLOCK_I + tl.arange(0, BLOCK_I){spread['i']}",
            f"j = tl.program_id({j}) * BLOCK_J + tl.arange(0, BLOCK_J){spread['j']}",
            "mask = (i < @over@) & (j < @across@)",
        ),
        across=Flat("j", stores),
        planes_last=last,
    )


def row_layout(kept: list[Axis], over: list[Axis], walk: bool) -> Layout:
    """A program a set: a vector of its elements."""
    start = "start + " if walk else ""
    return Layout(
        Flat("row", kept),
        Flat("cols", over),
        "[BLOCK]",
        "tl.{op}({e}, axis=0)",
        over_mask="mask",
        both_mask="mask",
        kept_lines=("row = tl.program_id(0)",),
        over_lines=(f"cols = {start}tl.arange(0, BLOCK)", "mask = cols < @over@"),
        reduced=set(over),
    )


def rows_layout(kept: list[Axis], over: list[Axis], walk: bool) -> Layout:
    """Several sets a program, each along the last axis of a matrix."""
    start = "start + " if walk else ""
    return Layout(
        Flat("row", kept),
        Flat("cols", over),
        "[ROWS, BLOCK]",
        "tl.{op}({e}, axis=1, keep_dims=True)",
        kept_mask="row < @total@",
        over_mask="cols < @over@",
        both_mask="mask",
        kept_lines=("row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]",),
        over_lines=(f"cols = {start}tl.arange(0, BLOCK)[None, :]", "mask = (row < @total@) & (cols < @over@)"),
        reduced=set(over),
    )


def columns_layout(kept: list[Axis], over: list[Axis], walk: bool) -> Layout:
    """Several sets a program, each along the first axis of a matrix: neighbours in memory belong to different sets."""
    start = "start + " if walk else ""
    return Layout(
        Flat("cols", kept),
        Flat("row", over),
        "[ROWS, BLOCK]",
        "tl.{op}({e}, axis=0, keep_dims=True)",
        kept_mask="cols < @total@",
        over_mask="row < @over@",
        both_mask="mask",
        kept_lines=("cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]",),
        over_lines=(f"row = {start}tl.arange(0, ROWS)[:, None]", "mask = (row < @over@) & (cols < @total@)"),
        reduced=set(over),
    )


def total(axes: Sequence[Axis], sets: int) -> Size:
    """How many elements axes span."""
    return times((1,) * sets, *(a.size for a in axes))


def power(n: int) -> int:
    """The least power of two that is not below n."""
    return 1 << max(0, n - 1).bit_length()
