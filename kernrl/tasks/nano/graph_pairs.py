"""Pairs of listing and reply without end: chunk `i` of a seed is the same on every machine and for any number of workers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import count as count_from
from itertools import islice
from pathlib import Path
from random import Random
from typing import Literal

from kernrl.tasks.graph.costs import Rates
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.nano.distinct_axes import at_distinct_sizes
from kernrl.tasks.nano.draw.draw_graphs import draw_graph
from kernrl.tasks.nano.listing import write_listing
from kernrl.tasks.nano.reply import CannotWriteError, answer_of, reply_of
from kernrl.tasks.solutions.from_graph.plausible import answer_s
from kernrl.tasks.solutions.from_graph.styles import TAUGHT, has_channels
from kernrl.tasks.solutions.from_graph.write_forward import Style
from kernrl.tasks.split import split_of
from kernrl.tasks.worker_pool import worker_pool

CHUNK = 64
"""Graphs that a worker draws at a time."""

PRECISIONS = ("tf32", "tf32", "bf16", "fp16", "fp32")
"""What the first line names: kernels of products, and which style is fast, depend on it."""

StyleChoice = Literal["uniform", "fast", "tagged"]
"""Which styles of a Graph are taught. `uniform`: any. `fast`: those that are fastest by the cost model of `plausible`.
`tagged`: any, and those that are among the fastest by that model reply to a prompt that asks for it (`listing.FAST`)."""

CLOSE = 1.1
"""Within this factor of the fastest the cost model cannot tell. A model that learns to sample all of these leaves it to RL to
find the best of them: on recorded times any of these takes 1.14 times the fastest, the first alone 1.13, any style 1.51."""

TRIED = 6
"""Styles that are written of a Graph to find the fastest of them: it takes a worker as long as two drawings of a Graph."""

MOST_TEXT = 5_300
"""Longest reply in characters. The densest have 3.5 to a token: all end within the 1,536 tokens that nano is given to reply."""


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


def graph_pairs(
    rng: Random, graph: Graph, styles: int = 3, choice: StyleChoice = "uniform", rates: Mapping[str, Rates] | None = None
) -> list[GraphPair]:
    """Pairs of one Graph, in up to so many styles; none where its axes cannot be told apart.

    Args:
        rates: Of the GPU that is taught for, by precision; no `choice` but `uniform` can do without.
    """
    graphs = at_distinct_sizes(graph)
    if len(graphs) == 1:
        return []
    precision = rng.choice(PRECISIONS)
    fitting = [style for style in TAUGHT if _may_fit(graphs[0], style)]
    drawn = rng.sample(fitting, min(styles if choice == "uniform" else max(styles, TRIED), len(fitting)))
    found: dict[str, tuple[float, str]] = {}
    for style in drawn:
        try:
            answer = answer_of(graphs, style, precision)
        except CannotWriteError:
            continue
        reply = reply_of(graphs, style, answer)
        if len(reply) <= MOST_TEXT:
            seconds = answer_s(answer, rates[precision], precision, channels_last=style.channels_last) if rates else 0.0
            found.setdefault(reply.partition("\n")[2], (seconds, reply))
    replies = list(found.values())
    asked = 0  # replies to a prompt that asks for the fastest
    if choice != "uniform":
        replies.sort()
    if choice == "tagged" and len(replies) > 1:
        close = [reply for reply in replies if reply[0] <= CLOSE * replies[0][0]]
        asked = min(len(close), max(1, styles // 2))
        fastest = rng.sample(close, asked)
        rest = [reply for reply in replies if reply not in fastest]
        replies = fastest + rng.sample(rest, len(rest))
    return [
        GraphPair(write_listing(graphs, precision, fast=i < asked), reply, graph.composition)
        for i, (_, reply) in enumerate(replies[:styles])
    ]


def _may_fit(graph: Graph, style: Style) -> bool:
    """False where a style has nothing to say about a Graph, as can be told without writing it."""
    if style.channels_last:
        return has_channels(graph, style)
    return style.product is None or any(node.kind == "product" for node in graph.nodes)


def chunk_of_pairs(
    number: int,
    *,
    seed: int,
    split: str,
    styles: int = 3,
    choice: StyleChoice = "uniform",
    rates: Mapping[str, Rates] | None = None,
) -> list[list[GraphPair]]:
    """The pairs of those Graphs of a chunk that are of this split, by Graph; see `graph_pairs`."""
    found: list[list[GraphPair]] = []
    for index in range(number * CHUNK, (number + 1) * CHUNK):
        rng = Random(f"kernrl/graph/{seed}/{index}")
        try:
            graph = draw_graph(rng)
            if split_of_graph(graph) == split:
                found.append(graph_pairs(rng, graph, styles, choice, rates))
        except Exception as error:
            error.add_note(f"Graph {index} of seed {seed}")  # whoever reads this can draw it again
            raise
    return [pairs for pairs in found if pairs]


def generate_pairs(
    *,
    count: int,
    seed: int = 0,
    split: str = "train",
    workers: int = 1,
    styles: int = 3,
    choice: StyleChoice = "uniform",
    rates: Mapping[str, Rates] | None = None,
) -> Iterator[GraphPair]:
    """The pairs of `count` Graphs of a split, in a fixed order; see `graph_pairs`.

    Args:
        workers: Processes; 1 works in this one.
    """
    make = partial(chunk_of_pairs, seed=seed, split=split, styles=styles, choice=choice, rates=rates)
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
