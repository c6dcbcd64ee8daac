"""The tiles for every space and layout: contiguous rows, columns over channels or samples."""

from __future__ import annotations

from kernrl.tasks.grammar.program import Shape
from kernrl.tasks.solutions.launch_code import host_dims, pixels
from kernrl.tasks.solutions.stage import Stage
from kernrl.tasks.solutions.tile import Tile


def _row_facts(stage: Stage) -> tuple[str, str, str, bool]:
    """(set size, number of sets, channel, does the channel vary within a set) of a contiguous space; host and kernel text."""
    shape, groups = stage.before, stage.groups
    letters = host_dims(shape)
    if stage.space == "rows":
        return "N", " * ".join(letters[:-1]), "cols", True
    if stage.space == "space":
        return pixels(shape), "B * C", "row % C", False
    if shape.layout == "grid":
        return f"C // {groups} * {pixels(shape)}", f"B * {groups}", f"row % {groups} * (n // S) + cols // S", True
    return f"N // {groups}", f"M * {groups}", f"row % {groups} * n + cols", True


def row_tile(stage: Stage, several: bool) -> Tile:
    """One program a contiguous set, or with `several` a block of ROWS sets."""
    n, count, channel, varies = _row_facts(stage)
    sizes = {"n": n, "n_rows": count, "C": "C", "N": "N", "S": pixels(stage.before) if stage.before.layout == "grid" else "1"}
    if several:
        return Tile(
            setup=("row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]",),
            index="cols",
            arange="tl.arange(0, BLOCK)[None, :]",
            step="BLOCK",
            offs="row * n + cols",
            mask="(row < n_rows) & (cols < n)",
            shape="[ROWS, BLOCK]",
            fold="tl.{op}({e}, axis=1, keep_dims=True)",
            count="n",
            channel=channel,
            channel_mask="cols < n" if varies else "row < n_rows",
            out_offs="row",
            out_mask="row < n_rows",
            grid=f"(triton.cdiv({count}, {{ROWS}}),)",
            sizes=sizes,
        )
    return Tile(
        setup=("row = tl.program_id(0)",),
        index="cols",
        arange="tl.arange(0, BLOCK)",
        step="BLOCK",
        offs="row * n + cols",
        mask="cols < n",
        shape="[BLOCK]",
        fold="tl.{op}({e}, axis=0)",
        count="n",
        channel=channel,
        channel_mask="mask" if varies else "",
        out_offs="row",
        out_mask="",
        grid=f"({count},)",
        sizes=sizes,
    )


def channel_tile(shape: Shape) -> Tile:
    """All channels of a block of pixels: strided loads, coalesced along the pixels."""
    area = pixels(shape)
    return Tile(
        setup=("s = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]",),
        index="c",
        arange="tl.arange(0, BLOCK_C)[:, None]",
        step="BLOCK_C",
        offs="(tl.program_id(0) * C + c) * S + s",
        mask="(c < C) & (s < S)",
        shape="[BLOCK_C, BLOCK]",
        fold="tl.{op}({e}, axis=0, keep_dims=True)",
        count="C",
        channel="c",
        channel_mask="c < C",
        out_offs="tl.program_id(0) * S + s",
        out_mask="s < S",
        grid=f"(B, triton.cdiv({area}, {{BLOCK}}))",
        sizes={"C": "C", "S": area},
    )


def batch_tile(shape: Shape) -> Tile:
    """One channel of all images, or a block of features of all samples."""
    if shape.layout == "grid":
        area = pixels(shape)
        return Tile(
            setup=("c = tl.program_id(0)",),
            index="i",
            arange="tl.arange(0, BLOCK)",
            step="BLOCK",
            offs="(i // S * C + c) * S + i % S",
            mask="i < n",
            shape="[BLOCK]",
            fold="tl.{op}({e}, axis=0)",
            count="n",
            channel="c",
            channel_mask="",
            out_offs="c",
            out_mask="",
            grid="(C,)",
            sizes={"n": f"B * {area}", "C": "C", "S": area},
        )
    return Tile(
        setup=("c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]",),
        index="i",
        arange="tl.arange(0, ROWS)[:, None]",
        step="ROWS",
        offs="i * N + c",
        mask="(i < M) & (c < N)",
        shape="[ROWS, BLOCK]",
        fold="tl.{op}({e}, axis=0, keep_dims=True)",
        count="M",
        channel="c",
        channel_mask="c < N",
        out_offs="c",
        out_mask="c < N",
        grid="(triton.cdiv(N, {BLOCK}),)",
        sizes={"M": "M", "N": "N"},
    )


def tile_for(stage: Stage, several: bool) -> Tile:
    """The tile of a stage's space."""
    if stage.space == "channels":
        return channel_tile(stage.before)
    return batch_tile(stage.before) if stage.space == "batch" else row_tile(stage, several)
