"""Pairs made while a model trains: a Graph that cannot be written costs its chunk, and many of them end the run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kernrl.config import SftConfig
from kernrl.policy.nano import train_tokenizer
from kernrl.policy.stream import ExampleStream
from kernrl.tasks.graph.run import FUNCTIONS, infer
from kernrl.tasks.nano.draw.draw_graphs import draw_graph
from kernrl.tasks.nano.graph_pairs import CHUNK, GraphPair, chunk_of_pairs, split_of_graph
from kernrl.training.pair_stream import PairStream

GOOD = [GraphPair("fp32 A=4\nx0 A\n", "# fused\ndef forward():\n    return x0\n", ("relu",))]


class OneRank:
    """Stands in for Ranks."""

    size, index, leads = 1, 0, True

    def lead(self, work: Callable[[], None]) -> None:
        work()


@pytest.fixture
def asked() -> list[str]:
    """The split of each chunk that was asked for."""
    return []


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: list[str]) -> Iterator[Callable[..., PairStream]]:
    """Streams of these chunks, or of what fails instead, without the workers that would make them."""
    made: list[PairStream] = []

    def stream_of(*chunks: list[GraphPair] | Exception) -> PairStream:
        coming = iter(chunks)

        class NoWorkers:
            def __init__(self, *_: Any, **__: Any) -> None:
                pass

            def submit(self, work: partial[Any], number: int) -> Future[Any]:
                future: Future[Any] = Future()
                asked.append(work.keywords.get("split", "train"))
                found = [GOOD] * 3 if asked[-1] == "validation" else next(coming)
                future.set_exception(found) if isinstance(found, Exception) else future.set_result(found)
                return future

            def shutdown(self, **_: Any) -> None:
                pass

        monkeypatch.setattr("kernrl.training.pair_stream.ProcessPoolExecutor", NoWorkers)
        ranks: Any = OneRank()
        made.append(PairStream(SftConfig(output=tmp_path, form="graph", count=len(chunks) * CHUNK, workers=1), ranks))
        return made[-1]

    yield stream_of
    for one in made:
        one.__exit__()


def collected(source: PairStream) -> ExampleStream:
    return source.start(train_tokenizer([GOOD[0].prompt, GOOD[0].reply] * 20), 64, 64)


def test_a_chunk_that_fails_is_left_out(source: Callable[..., PairStream]) -> None:
    stream = collected(source(GOOD, AssertionError("a shape"), GOOD))
    next(stream.rows())  # which waits for all of so few
    assert stream.seen == 2  # of the chunks before it and after it


def test_few_chunks_are_looked_through_to_validate_on_few_pairs(source: Callable[..., PairStream], asked: list[str]) -> None:
    assert len(source(GOOD).validation()) == 10  # Graphs, of one pair each
    assert asked.count("validation") == 5
    asked.clear()
    assert len(source(*[GOOD] * 40).validation()) == 25
    assert asked.count("validation") == 12
    asked.clear()
    assert len(source(*[GOOD] * 400).validation()) == 120
    assert asked.count("validation") == 40


@pytest.mark.parametrize(
    ("error", "chunks"),
    [(AssertionError, [AssertionError("a shape")] * 5), (BrokenProcessPool, [GOOD, BrokenProcessPool("killed"), GOOD])],
)
def test_many_that_fail_end_the_run_and_so_does_a_killed_worker(
    source: Callable[..., PairStream], error: type[Exception], chunks: list[Any]
) -> None:
    with pytest.raises(error):
        next(collected(source(*chunks)).rows())


def test_operands_that_only_an_assertion_refuses_are_refused_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def asserts(*_: Any, **__: Any) -> None:
        raise AssertionError("Invalid input shape for pixel_shuffle")

    monkeypatch.setitem(FUNCTIONS, "pixel_shuffle", asserts)
    with pytest.raises(RuntimeError, match="pixel_shuffle"):
        infer("pixel_shuffle", (((2, 7, 4, 4), "float32"),), (("upscale_factor", 3),))


def test_a_graph_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> str:
        raise KeyError("v4_sum")

    monkeypatch.setattr("kernrl.tasks.nano.graph_pairs.answer_of", fails)
    with pytest.raises(KeyError) as raised:
        chunk_of_pairs(0, seed=5, split="train")
    named = re.fullmatch(r"Graph (\d+) of seed 5", raised.value.__notes__[0])
    assert named is not None
    assert split_of_graph(draw_graph(Random(f"kernrl/graph/5/{named[1]}"))) == "train"
