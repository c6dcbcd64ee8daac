"""Every op is written in every form that it has, and what was written lifts back to the Graph and computes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from random import Random

import pytest
import torch
from support.graph_cases import assert_same

from kernrl.tasks.graph.canonical.build import Builder
from kernrl.tasks.graph.canonical.rewrites import rewrite
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.spellings import FUNCTIONS, NoSpellingError
from kernrl.tasks.graph.writing.write import write
from kernrl.tasks.task import Task, load_reference

Case = Callable[[Builder, str], str]
"""Adds an op to a builder, of a value between 0 and 1."""

ROWS, IMAGE, VOLUME = (12, 24), (3, 8, 12, 16), (2, 8, 8, 10, 12)


def op(name: str, *others: float, **attributes: object) -> Case:
    return lambda b, x: b.add(name, x, *others, **attributes)


def joined(name: str, **attributes: object) -> Case:
    """With a tensor of the same shape."""
    return lambda b, x: b.add(name, x, b.add("cos", x), **attributes)


PATHS = count()


def held(b: Builder, *shape: int, kind: str = "parameter") -> str:
    """A tensor of the module."""
    return b.parameter(shape, "float32", kind, f"p{next(PATHS)}")


def layer(name: str, *shapes: tuple[int, ...], **attributes: object) -> Case:
    """With parameters of these shapes."""
    return lambda b, x: b.add(name, x, *(held(b, *shape) for shape in shapes), **attributes)


def of_mask(of: Case) -> Case:
    """Of whether x is above a half, as a number."""
    return lambda b, x: b.add("cast", of(b, b.add("gt", x, 0.5)), dtype="float32")


def compared(name: str) -> Case:
    return lambda b, x: b.add("cast", b.add(name, x, 0.5), dtype="float32")


def logic(name: str) -> Case:
    return of_mask(lambda b, m: b.add(name, m, b.add("lt", b.inputs[0], 0.3)))


def where(*order: str) -> Case:
    def add(b: Builder, x: str) -> str:
        sides = {"mask": b.add("gt", x, 0.4), "x": x, "number": -1.5, "other": b.add("cos", x), "low": float("-inf")}
        found = b.add("where", *(sides[side] for side in order))
        return b.add("softmax", found, dim=(1,)) if "low" in order else found

    return add


def by_place(start: int, dtype: str) -> Case:
    return lambda b, x: b.add("mul", x, b.add("arange", start=start, end=24 + start, dtype=dtype))


def running(name: str, *order: int, **attributes: object) -> Case:
    """A batch norm with a scale, a shift and two statistics, in the op's own order."""

    def add(b: Builder, x: str) -> str:
        kinds = ("parameter", "parameter", "buffer", "buffer")
        return b.add(name, x, *(held(b, 8, kind=kinds[i]) for i in order), **attributes)

    return add


def shared(b: Builder, x: str) -> str:
    """Two layers of one weight: no module holds it."""
    weight = held(b, 24, 24)
    return b.add("linear", b.add("relu", b.add("linear", x, weight, None)), weight, None)


ROW_CASES: dict[str, Case] = {
    **{name: op(name) for name in FUNCTIONS if name not in ("logical_not", "isnan", "isinf")},
    **{name: compared(name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    **{name: logic(name) for name in ("logical_and", "logical_or", "logical_xor")},
    "logical_not": of_mask(op("logical_not")),
    **{name: lambda b, x, name=name: b.add("cast", b.add(name, x), dtype="float32") for name in ("isnan", "isinf")},
    **{name: op(name, dim=1) for name in ("cumsum", "cumprod", "logcumsumexp")},
    **{f"{name} of one axis": op(name, dim=(1,), keepdim=True) for name in ("prod", "sum", "norm")},
    **{f"{name} of one axis": of_mask(op(name, dim=(1,))) for name in ("any", "all")},
    "argmax": lambda b, x: b.add("cast", b.add("argmax", x, dim=(1,)), dtype="float32"),
    "argmin of all": lambda b, x: b.add("cast", b.add("argmin", x, dim=(0, 1)), dtype="float32"),
    "prod of all": op("prod", dim=(0, 1)),
    "std of the whole": op("std", dim=(1,), correction=0.0),
    "var of a sample": op("var", dim=(1,), correction=2.0, keepdim=True),
    "norm of ones": op("norm", dim=(1,), p=1.0),
    "largest norm": op("norm", dim=(1,), p=float("inf")),
    "threshold": op("threshold", threshold=0.3, value=-2.0),
    "remainder": op("remainder", 0.3),
    "fmod": op("fmod", 0.3),
    "floor of a quotient": op("div", 0.3, rounding_mode="floor"),
    "whole part of a quotient": op("div", 0.3, rounding_mode="trunc"),
    "pow": op("pow", 1.7),
    "a constant that float32 rounds": op("mul", 0.7978845608),
    "atan2": joined("atan2"),
    "where": where("mask", "x", "other"),
    "where with a number": where("mask", "number", "x"),
    "where with another number": where("mask", "x", "number"),
    "where with no chance": where("mask", "low", "x"),
    "cast": lambda b, x: b.add("cast", b.add("cast", b.add("mul", x, 9.0), dtype="int64"), dtype="float32"),
    "prelu of one": layer("prelu", (1,)),
    "prelu": layer("prelu", (24,)),
    "prelu of another": lambda b, x: b.add("prelu", x, b.add("exp", held(b, 24))),
    "unflatten": op("unflatten", dim=1, sizes=(4, 6)),
    "expand": lambda b, x: b.add("expand", b.add("unsqueeze", x, dim=(1,)), shape=(12, 5, 24)),
    "upsampled": lambda b, x: b.add(
        "reshape", b.add("expand", b.add("unsqueeze", x, dim=(2,)), shape=(12, 24, 2)), shape=(12, 48)
    ),
    "select": op("select", dim=0, index=3),
    "half": op("slice", dim=1, start=0, stop=12, step=1),
    "second half": op("slice", dim=1, start=12, stop=24, step=1),
    "all but the last": op("slice", dim=1, start=0, stop=23, step=1),
    "every other": op("slice", dim=0, start=1, stop=12, step=2),
    "chunk": op("chunk", chunks=2, dim=1, index=1),
    "cat": joined("cat", dim=1),
    "flip": op("flip", dim=(1,)),
    "roll": op("roll", shifts=(2,), dim=(1,)),
    "roll of two axes": op("roll", shifts=(2, -1), dim=(0, 1)),
    "repeat": op("repeat", repeats=(1, 3)),
    "tril": op("tril", diagonal=1),
    "triu": op("triu"),
    "places": by_place(0, "float32"),
    "places from one": by_place(1, "int64"),
    "full": lambda b, x: b.add("where", b.add("gt", x, 0.4), b.add("full", 2.5, shape=(), dtype="float32"), x),
    "a linear layer of a weight that is made": lambda b, x: b.add("linear", x, b.add("exp", held(b, 6, 24)), held(b, 6)),
    "a shared weight": shared,
    "1 over": lambda b, x: b.add("div", 1.0, b.add("add", x, 1.0)),
}

IMAGE_CASES: dict[str, Case] = {
    "batch norm": running("batch_norm", 0, 1, 2, 3, eps=1e-3, momentum=0.3),
    "batch norm in evaluation": running("batch_norm_eval", 2, 3, 0, 1, eps=1e-3),
    "group norm": layer("group_norm", (8,), (8,), num_groups=4, eps=1e-4),
    "instance norm": layer("instance_norm", (8,), (8,), eps=1e-4),
    "pixel shuffle": op("pixel_shuffle", upscale_factor=2),
    "pixel unshuffle": op("pixel_unshuffle", downscale_factor=2),
    "adaptive average": op("adaptive_avg_pool2d", output_size=(3, 4)),
    "adaptive maximum": op("adaptive_max_pool2d", output_size=(2, 2)),
    "a pool with gaps": op("max_pool2d", kernel_size=(2, 2), stride=(2, 2), dilation=(2, 2)),
    "a pool of one more": op("max_pool2d", kernel_size=(3, 3), stride=(2, 2), ceil_mode=True),
    "an average of what is there": op("avg_pool2d", kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), count_include_pad=False),
    "a sum over a number": op("avg_pool2d", kernel_size=(2, 2), stride=(2, 2), divisor_override=3),
    "pad": op("pad", padding=(1, 2, 0, 3)),
    "pad with a number": op("pad", padding=(1, 1, 1, 1), value=0.5),
    "pad with the lowest": lambda b, x: b.add("amax", b.add("pad", x, padding=(1, 1, 1, 1), value=float("-inf")), dim=(2, 3)),
    **{f"pad {mode}": op("pad", padding=(2, 1, 1, 2), mode=mode) for mode in ("reflect", "replicate", "circular")},
    "channels shuffled": lambda b, x: b.add(
        "flatten", b.add("permute", b.add("unflatten", x, dim=1, sizes=(2, 4)), dims=(0, 2, 1, 3, 4)), start_dim=1, end_dim=2
    ),
    "reshape": lambda b, x: b.add("reshape", b.add("permute", x, dims=(0, 2, 1, 3)), shape=(3, 12, 16, 8)),
}

VOLUME_CASES: dict[str, Case] = {
    "adaptive average": op("adaptive_avg_pool3d", output_size=(2, 5, 3)),
    "pad": op("pad", padding=(1, 1, 1, 1, 1, 1), mode="replicate"),
}

CASES = [
    (shape, cases[name], name)
    for shape, cases in ((ROWS, ROW_CASES), (IMAGE, IMAGE_CASES), (VOLUME, VOLUME_CASES))
    for name in cases
]


def graph_of(shape: tuple[int, ...], case: Case) -> Graph:
    b = Builder(rewrite)
    x = b.add("sigmoid", b.input(shape, "float32", (0,)))
    return b.finish([case(b, x)])


def texts_of(graph: Graph, hands: int) -> set[str]:
    """What different hands write, each form preferred in turn."""
    found = set()
    for seed in range(hands):
        rng = Random(seed)
        forms = {f: 1.0 if i == seed % 4 else 1e-6 for i, f in enumerate(("functional", "method", "operator", "module"))}
        found.add(write(graph, replace(Hand.draw(rng), forms=forms, docs="", comments=False), rng))
    return found


def assert_comes_back(graph: Graph, text: str) -> None:
    task = Task("task", text)
    found = lift(task)
    assert found == graph, f"{text}\n{graph.listing()}\n\n{found.listing()}"
    torch.manual_seed(0)
    reference = load_reference(task)
    assert_same(found, reference.Model(*reference.get_init_inputs()), list(reference.get_inputs()))


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "case", "name"), CASES, ids=[f"{len(s)}-{name}" for s, _, name in CASES])
def test_every_spelling_lifts_back_and_computes_the_same(shape: tuple[int, ...], case: Case, name: str) -> None:
    graph = graph_of(shape, case)
    for text in texts_of(graph, 8):
        assert_comes_back(graph, text)


@pytest.mark.parametrize("name", ["where with a number", "unflatten", "places from one", "a shared weight"])
def test_a_spelling_lifts_back(name: str) -> None:
    graph = graph_of(ROWS, ROW_CASES[name])
    for text in texts_of(graph, 4):
        assert lift(Task("task", text)) == graph, text


def test_what_cannot_be_written_is_refused() -> None:
    refused: dict[str, Case] = {
        "a number over": lambda b, x: b.add("div", 2.5, x),
        "a norm of the first axis": op("rms_norm", dim=(1,), eps=1e-5),
    }
    for case in refused.values():
        with pytest.raises(NoSpellingError, match="there is no spelling of"):
            write(graph_of((4, 6, 8), case), Hand.draw(Random(0)), Random(0))


def written(graph: Graph, **habits: object) -> list[str]:
    hands = [(Hand.draw(rng), rng) for rng in map(Random, range(24))]
    return [write(graph, replace(hand, inline=0.0, variables="rebind", **habits), rng) for hand, rng in hands]


def test_what_a_pending_layer_reads_is_not_overwritten() -> None:
    """A module that may still join a Sequential is called later than where its op stands."""
    b = Builder(rewrite)
    x = b.add("relu", b.input(ROWS, "float32", (0,)))
    one = b.add("linear", x, held(b, 24, 24), held(b, 24))
    other = b.add("sin", b.add("mul", x, 2.0))
    graph = b.finish([b.add("sub", one, other)])
    for text in written(graph, sequential=True):
        assert lift(Task("task", text)) == graph, text


def test_nothing_is_changed_in_place_of_which_a_part_is_still_read() -> None:
    b = Builder(rewrite)
    x = b.add("sin", b.input(ROWS, "float32", (0,)))
    half = b.add("slice", x, dim=1, start=0, stop=12, step=1)
    twice = b.add("slice", b.add("mul", x, 2.0), dim=1, start=3, stop=15, step=1)
    graph = b.finish([b.add("sub", half, twice)])
    for text in written(graph, in_place=True, forms={"operator": 1.0, "method": 1e-6, "functional": 1e-6, "module": 1e-6}):
        assert lift(Task("task", text)) == graph, text
