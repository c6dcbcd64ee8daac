"""Values that are read around an element of their own: pools, and what lies beyond the edge of a padded tensor."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from typing import Any, Protocol

from kernrl.tasks.solutions.from_graph.codegen.index_text import Access
from kernrl.tasks.solutions.from_graph.codegen.view_index import Index, Ix
from kernrl.tasks.solutions.from_graph.fusion.fuse import Axis, Group
from kernrl.tasks.solutions.from_graph.lowering.lowered_ops import Op, Program
from kernrl.tasks.solutions.from_graph.lowering.pointwise_text import helpers_in, literal
from kernrl.tasks.solutions.from_graph.lowering.sizes import Size, is_one

MOST_UNROLLED, MOST_COSTLY = 32, 9
"""Turns of nested loops that are written out one after another when a kernel is compiled, of cheap and of costly ones; more
take seconds of it: a softplus over 3 x 3 x 3 neighbours, in tiles of eight elements a thread, took 25."""
COSTLY = re.compile(r"tl\.(?:exp|log|erf|sigmoid|sin|cos)")
"""What takes many instructions, as do the functions that a file defines itself."""

NEUTRAL = {"sum": "0.0", "max": 'float("-inf")', "min": 'float("inf")'}
"""What changes nothing in a reduction."""


class Lines(Protocol):
    """What is used here of a kernel's body (`emit.Body`)."""

    group: Group
    tile: Any
    accesses: list[Access]
    inside: list[str]
    scopes: list[dict[tuple[str, Index], str]]
    unrolled: int
    reach: dict[Axis, int]
    places: dict[str, Ix]

    @property
    def program(self) -> Program: ...
    def at(self, value: str, index: Index) -> str: ...
    def coordinate(self, i: Ix) -> str: ...
    def size(self, size: Size) -> str: ...
    def name(self, value: str) -> str: ...
    def say(self, line: str, scope: int = -1) -> None: ...
    def open(self) -> None: ...
    def close(self) -> list[str]: ...


def window(body: Lines, op: Op, index: Index) -> str:
    """A pool of one element, or a sum of it and its neighbours with weights: a loop over its window."""
    rank = len(op.window["kernel_size"])
    x, shape = op.reads[0], body.program.shapes[op.reads[0]]
    where, taps = list(index), [Ix()] * rank
    rows = zip(*(op.window[k] for k in ("kernel_size", "stride", "padding", "dilation")), strict=True)
    loops, guards = [], []
    for d, (count, stride, padding, dilation) in enumerate(rows, len(index) - rank):
        i = index[d]
        offset = tuple(o * stride - padding for o in i.offset or (0,) * body.program.sets)
        extra = tuple((n, by * stride) for n, by in i.extra)
        if count > 1:
            variable = body.name("ijk"[len(loops)])
            loops.append((variable, count))
            extra += ((variable, dilation),)
            for axis in index[d].parts:
                body.reach[axis] = max(body.reach.get(axis, 1), count)
            taps[d - len(index) + rank] = Ix(extra=((variable, 1),))
        where[d] = replace(i, step=i.step * stride, offset=offset if any(offset) else None, extra=extra)
        if padding:
            guards.append((d, shape[d]))
    result, counted = body.name(op.value), ""
    lowest = NEUTRAL["max" if op.how == "max" else "sum"]
    body.say(f"{result} = tl.full({body.tile.shape}, {lowest}, dtype=tl.float32)")
    if op.how == "avg_inside":
        counted = body.name("count")
        body.say(f"{counted} = tl.full({body.tile.shape}, 0.0, dtype=tl.float32)")
    around = body.unrolled
    counts = [count for _, count in loops]
    rolled = _rolled(counts, around, parts=op.how == "taps")
    body.unrolled = around * prod(counts[rolled:])
    body.open()
    weight = ""
    if op.how == "taps":
        weight = f" * {body.at(op.reads[1], (index[1], Ix(), *taps))}"
        if is_one(shape[1]):
            where[1] = Ix()
    before = len(body.inside)
    if guards and (mask := body.tile.mask(set(body.group.axes))):
        body.inside.append(mask)
    for d, size in guards:
        place = body.name("at")
        body.say(f"{place} = {body.coordinate(where[d])}")
        body.inside.append(f"({place} >= 0) & ({place} < {body.size(size)})")
        body.places[place], where[d] = where[d], Ix(extra=((place, 1),))
    value = body.at(x, tuple(where)) + weight
    mask = " & ".join(body.inside)
    value = f"tl.where({mask}, {value}, {lowest})" if mask else value
    body.say(f"{result} = tl.maximum({result}, {value})" if op.how == "max" else f"{result} += {value}")
    if op.how == "avg_inside":
        body.say(f"{counted} += tl.where({mask}, 1.0, 0.0)")
    del body.inside[before:]
    inner, body.unrolled = body.close(), around
    if COSTLY.search(text := "\n".join(inner)) or helpers_in(text):
        rolled = max(rolled, _rolled(counts, around, MOST_COSTLY, parts=True))
    for depth, (variable, count_) in enumerate(loops):
        body.say("    " * depth + f"for {variable} in {'range' if depth < rolled else 'tl.static_range'}({count_}):")
    for line in inner:
        body.say("    " * len(loops) + line)
    if op.how == "avg":
        body.say(f"{result} = {result} / {prod(op.window['kernel_size'])}")
    elif op.how == "avg_inside":
        body.say(f"{result} = {result} / {counted}")
    body.scopes[-1][op.value, index] = result
    return result


def _rolled(counts: list[int], around: int, most: int = MOST_UNROLLED, *, parts: bool) -> int:
    """How many of nested loops, the outer ones, are not unrolled: all or none of a pool's, if its turns are cheap."""
    rolled = 0
    while rolled < len(counts) and around * prod(counts[rolled:]) > most:
        rolled += 1 if parts else len(counts)
    return rolled


def padded(body: Lines, op: Op, index: Index) -> str:
    """An element of a padded tensor: mirrored, repeated or turned round at the edge, or a number beyond it."""
    x, where, guards = op.reads[0], list(index), list[str]()
    shape, before = body.program.shapes[x], len(body.inside)
    result = body.name(op.value)
    body.open()
    if mask := body.tile.mask(set(body.group.axes)):
        body.inside.append(mask)
    for d, low in enumerate(op.dims):
        if body.program.shapes[op.value][d] == shape[d]:
            continue
        offset = tuple(o - low for o in index[d].offset or (0,) * body.program.sets)
        at = body.coordinate(replace(index[d], offset=offset if any(offset) else None))
        place, size = body.name("at"), body.size(shape[d])
        if op.how == "pad_reflect":
            at = f"{size} - 1 - tl.abs({size} - 1 - tl.abs({at}))"
        elif op.how == "pad_replicate":
            at = f"tl.minimum(tl.maximum({at}, 0), {size} - 1)"
        elif op.how == "pad_circular":
            at = f"({at} + {size}) % {size}"
        else:
            guards.append(f"({place} >= 0) & ({place} < {size})")
        body.say(f"{place} = {at}")
        body.places[place], where[d] = index[d], Ix(extra=((place, 1),))
    body.inside += guards
    value = body.at(x, tuple(where))
    if guards:
        inside = " & ".join(g if g.isidentifier() or g.startswith("(") else f"({g})" for g in body.inside)
        value = f"tl.where({inside}, {value}, {literal(op.scale)})"
    del body.inside[before:]
    for line in body.close():
        body.say(line)
    body.say(f"{result} = {value}")
    body.scopes[-1][op.value, index] = result
    return result
