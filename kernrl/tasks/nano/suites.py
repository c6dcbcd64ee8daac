"""Suites of tasks made on the spot from a seed: what nano is examined by, written as PyTorch in many hands.

They are drawn by `graph/sample.py`, whose every Graph can be written; nano sees their Graphs as it sees anybody's.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from random import Random

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.graph.sample import product, sample
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.write import write
from kernrl.tasks.nano.graph_pairs import split_of_graph
from kernrl.tasks.split import HELDOUT
from kernrl.tasks.task import Task

SUITES = {"graph-heldout": (2, 8), "graph-deep": (9, 12), "graph-single": (1, 1)}
"""Name → fewest and most ops. Compositions of the first two are never trained on; single ops are, at other sizes."""

TASKS = 128
"""Tasks of a suite."""


def suite(name: str, seed: int = 0, tasks: int = TASKS) -> Iterator[Task]:
    """The tasks of a suite, each of another composition where there are enough."""
    fewest, most = SUITES[name]
    seen: set[tuple[str, ...]] = set()
    made = 0
    for index in count():
        if made == tasks:
            return
        rng = Random(f"kernrl/{name}/{seed}/{index}")
        graph = sample(rng, rng.randint(fewest, most), first=product if rng.random() < 0.6 else None)
        composition = graph.composition
        if not fewest <= len(composition) <= most or not _authored(graph):
            continue
        if most > 1 and (composition in seen or split_of_graph(graph) != HELDOUT):
            continue
        seen.add(composition)
        made += 1
        yield Task(
            id=f"{name}-{seed}-{index:05d}",
            pytorch_code=write(graph, Hand.draw(rng), rng),
            level=1 if most == 1 else 2,
            name="_".join(composition),
            family=composition[0],
            composition=composition,
            split=HELDOUT if most > 1 else "",
        )


def _authored(graph: Graph) -> bool:
    """Something is left for a kernel: products alone are the library's."""
    return any(node.kind not in ("product", "convolution", "view") for node in graph.nodes)
