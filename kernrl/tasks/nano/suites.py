"""Suites of tasks made on the spot from a seed, written as PyTorch in many coding styles; nano sees only Graphs.

It is examined by those of `graph/sample.py`, whose every Graph can be written. It practises on those of `draw/draw_graphs.py`,
which draws what it learned from, at sizes at which a GPU has work.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

from kernrl.tasks.graph.costs import product_flops
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.sample import product, sample
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.spellings import NoSpellingError
from kernrl.tasks.graph.writing.write import write
from kernrl.tasks.nano.distinct_axes import at_distinct_sizes
from kernrl.tasks.nano.draw.draw_graphs import draw_graph
from kernrl.tasks.nano.graph_pairs import split_of_graph
from kernrl.tasks.nano.sound_graphs import why_unsound
from kernrl.tasks.nano.stated_sets import write_with_sets
from kernrl.tasks.split import HELDOUT, TRAIN
from kernrl.tasks.task import FULL, InputSet, Task

SUITES = {"graph-heldout": (2, 8), "graph-deep": (9, 12), "graph-single": (1, 1), "graph-train": (2, 10)}
"""Name → fewest and most ops. Compositions of the first two are never trained on; single ops are, at other sizes; those of
`graph-train` are there to be trained on."""

PRACTICE = "graph-train"

TASKS = {"graph-heldout": 128, "graph-deep": 128, "graph-single": 128, PRACTICE: 512}
"""Tasks of a suite."""

MOST_ELEMENTS = 2**28
"""Largest tensor of a task to practise on: 1 GiB of float32."""

LEAST_BYTES, MOST_BYTES = 2**24, 2**30
"""What a task to practise on reads and writes: inputs, parameters and outputs. With less, a GPU has hardly any work."""

MOST_FLOPS = 10**12
"""Of the products of a task to practise on."""


def suite(name: str, seed: int = 0, tasks: int | None = None) -> Iterator[Task]:
    """The tasks of a suite, each of another composition where there are enough; by default as many as `TASKS` says."""
    fewest, most = SUITES[name]
    split = TRAIN if name == PRACTICE else HELDOUT if most > 1 else ""
    seen: set[tuple[str, ...]] = set()
    made = 0
    for index in count():
        if made == (TASKS[name] if tasks is None else tasks):
            return
        rng = Random(f"kernrl/{name}/{seed}/{index}")
        graph = _to_practise(rng) if name == PRACTICE else _to_examine(rng, fewest, most)
        composition = graph.composition
        if not fewest <= len(composition) <= most or not _authored(graph):
            continue
        if most > 1 and (composition in seen or split_of_graph(graph) != split):
            continue
        try:
            if name == PRACTICE:
                distinct = at_distinct_sizes(graph)
                if len(distinct) == 1 or not _worth_practising(graph, index):
                    continue
                code, sets = write_with_sets(graph, Hand.draw(rng), rng, distinct)
            else:
                code, sets = write(graph, Hand.draw(rng), rng), (InputSet(FULL),)
        except NoSpellingError:
            continue
        seen.add(composition)
        made += 1
        yield Task(
            id=f"{name}-{seed}-{index:05d}",
            pytorch_code=code,
            level=1 if most == 1 else 2,
            name="_".join(composition),
            family=composition[0],
            composition=composition,
            split=split,
            input_sets=sets,
        )


def _to_examine(rng: Random, fewest: int, most: int) -> Graph:
    return sample(rng, rng.randint(fewest, most), first=product if rng.random() < 0.6 else None)


def _to_practise(rng: Random) -> Graph:
    return draw_graph(rng, most=MOST_ELEMENTS)


def _worth_practising(graph: Graph, seed: int) -> bool:
    """A GPU has work, and wrong answers can be told from right ones."""
    values = graph.values
    ends = [v.value for v in (*graph.inputs, *graph.parameters)] + [values[o] for o in graph.outputs if isinstance(o, str)]
    return (
        LEAST_BYTES <= sum(value.nbytes for value in ends) <= MOST_BYTES
        and product_flops(graph) <= MOST_FLOPS
        and all(value.numel <= MOST_ELEMENTS for value in values.values())
        and not why_unsound(graph, seed)
    )


def _authored(graph: Graph) -> bool:
    """Something is left for a kernel: products alone are the library's."""
    return any(node.kind not in ("product", "convolution", "view") for node in graph.nodes)
