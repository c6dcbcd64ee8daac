"""Pairs of listing and reply without end: chunk `i` of a seed is the same on every machine and for any number of workers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import count as count_from
from itertools import islice
from pathlib import Path
from random import Random

from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.nano.distinct_axes import at_distinct_sizes
from kernrl.tasks.nano.draw import draw_graph
from kernrl.tasks.nano.listing import write_listing
from kernrl.tasks.nano.reply import CannotWriteError, write_reply
from kernrl.tasks.solutions.from_graph.styles import TAUGHT
from kernrl.tasks.split import split_of
from kernrl.tasks.worker_pool import worker_pool

CHUNK = 64
"""Graphs that a worker draws at a time."""

PRECISIONS = ("fp32", "fp32", "tf32", "bf16", "fp16")
"""What the first line names; no reply depends on it."""

MOST_TEXT = 9_000
"""Longest reply in characters; 1 % are longer."""


@dataclass(frozen=True, slots=True)
class GraphPair:
    """A prompt and a reply that is right."""

    prompt: str
    reply: str
    composition: tuple[str, ...]


EXCLUDED = Path(__file__).with_name("excluded.txt")
"""A line for each task that is an examination: the digest of its composition, and its id."""


@cache
def excluded() -> frozenset[str]:
    """Digests of the compositions of the foreign suite and of `heldout`, none of which is trained on."""
    return frozenset(line.split()[0] for line in EXCLUDED.read_text().splitlines())


def digest(composition: tuple[str, ...]) -> str:
    """What `excluded.txt` says of a composition."""
    return hashlib.sha256("/".join(composition).encode()).hexdigest()[:12]


def split_of_graph(graph: Graph) -> str:
    """`train`, `validation` or `heldout` by composition; `excluded` for one of an examination."""
    return "excluded" if digest(graph.composition) in excluded() else split_of(graph.composition)


def graph_pairs(rng: Random, graph: Graph, styles: int = 3) -> list[GraphPair]:
    """Pairs of one Graph, in up to so many styles; none where its axes cannot be told apart."""
    graphs = at_distinct_sizes(graph)
    if len(graphs) == 1:
        return []
    images = any(n.kind == "convolution" and n.op[-2] != "1" for n in graph.nodes)
    fitting = [s for s in TAUGHT if images or not s.channels_last]
    found: dict[str, GraphPair] = {}
    for style in rng.sample(fitting, min(styles, len(fitting))):
        try:
            reply = write_reply(graphs, style)
        except CannotWriteError:
            continue
        if len(reply) <= MOST_TEXT:
            found.setdefault(reply.partition("\n")[2], GraphPair("", reply, graph.composition))
    return [GraphPair(write_listing(graphs, rng.choice(PRECISIONS)), p.reply, p.composition) for p in found.values()]


def chunk_of_pairs(number: int, *, seed: int, split: str, styles: int = 3) -> list[list[GraphPair]]:
    """The pairs of those Graphs of a chunk that are of this split, by Graph."""
    found: list[list[GraphPair]] = []
    for index in range(number * CHUNK, (number + 1) * CHUNK):
        rng = Random(f"kernrl/graph/{seed}/{index}")
        try:
            graph = draw_graph(rng)
            if split_of_graph(graph) == split:
                found.append(graph_pairs(rng, graph, styles))
        except Exception as error:
            error.add_note(f"Graph {index} of seed {seed}")  # whoever reads this can draw it again
            raise
    return [pairs for pairs in found if pairs]


def generate_pairs(*, count: int, seed: int = 0, split: str = "train", workers: int = 1) -> Iterator[GraphPair]:
    """The pairs of `count` Graphs of a split, some three of each, in a fixed order.

    Args:
        workers: Processes; 1 works in this one. A core makes some 200 pairs a second.
    """
    make = partial(chunk_of_pairs, seed=seed, split=split)
    if workers <= 1:
        for pairs in islice((pairs for number in count_from() for pairs in make(number)), count):
            yield from pairs
        return
    made = 0
    numbers = count_from()
    with worker_pool(workers) as mapped:
        while made < count:
            for chunk in mapped(make, list(islice(numbers, 4 * workers))):
                fresh = chunk[: count - made]
                made += len(fresh)
                for pairs in fresh:
                    yield from pairs
