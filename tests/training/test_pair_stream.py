"""Pairs made while a model trains: a Graph that cannot be written costs its chunk, and many of them end the run."""

from __future__ import annotations

import re
from collections import deque
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from random import Random
from typing import Any

import pytest

from kernrl.config import SftConfig
from kernrl.policy.nano import train_tokenizer
from kernrl.policy.stream import ExampleStream
from kernrl.tasks.graph.run import infer
from kernrl.tasks.nano.draw import draw_graph
from kernrl.tasks.nano.graph_pairs import GraphPair, chunk_of_pairs, split_of_graph
from kernrl.training.pair_stream import PairStream

GOOD = [GraphPair("fp32 A=4\nx0 A\n", "# fused\ndef forward():\n    return x0\n", ("relu",))]


class OneRank:
    """Stands in for Ranks."""

    size, index, leads = 1, 0, True


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> PairStream:
    """A stream whose workers are never asked: chunks are put into it."""

    class NoPool:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def submit(self, *_: Any, **__: Any) -> Future[Any]:
            return Future()

    monkeypatch.setattr("kernrl.training.pair_stream.ProcessPoolExecutor", NoPool)
    ranks: Any = OneRank()
    made = PairStream(SftConfig(output=tmp_path, form="graph", count=1000, workers=1), ranks)
    monkeypatch.setattr(made, "_fill", lambda: None)
    made._coming.clear()
    return made


def chunks(*found: Any) -> deque[Future[Any]]:
    coming: deque[Future[Any]] = deque()
    for item in found:
        future: Future[Any] = Future()
        future.set_exception(item) if isinstance(item, BaseException) else future.set_result(item)
        coming.append(future)
    return coming


def collected(source: PairStream) -> ExampleStream:
    tokenizer = train_tokenizer([GOOD[0].prompt, GOOD[0].reply] * 20)
    stream = ExampleStream(64, pad_id=0, seed=0, max_length=64)
    source._collect(stream, tokenizer)
    return stream


def test_a_chunk_that_fails_is_left_out(source: PairStream) -> None:
    source._coming = chunks(GOOD, AssertionError("a shape"), GOOD)
    stream = collected(source)
    assert stream.seen == 2  # of the chunks before it and after it


@pytest.mark.parametrize("error", [AssertionError("a shape"), BrokenProcessPool("killed")])
def test_chunks_that_all_fail_end_the_run(source: PairStream, error: Exception) -> None:
    source._coming = chunks(*[error] * 5)
    with pytest.raises(type(error)):
        next(collected(source).rows())


def test_operands_that_only_an_assertion_refuses_are_refused_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def asserts(*_: Any, **__: Any) -> None:
        raise AssertionError("Invalid input shape for pixel_shuffle")

    monkeypatch.setattr("kernrl.tasks.graph.run._function", lambda op: asserts)
    with pytest.raises(RuntimeError, match="pixel_shuffle"):
        infer("pixel_shuffle", (((2, 7, 4, 4), "float32"),), (("upscale_factor", 3),))


def test_a_graph_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> str:
        raise KeyError("v4_sum")

    monkeypatch.setattr("kernrl.tasks.nano.graph_pairs.write_reply", fails)
    with pytest.raises(KeyError) as raised:
        chunk_of_pairs(0, seed=5, split="train")
    named = re.fullmatch(r"Graph (\d+) of seed 5", raised.value.__notes__[0])
    assert named is not None
    assert split_of_graph(draw_graph(Random(f"kernrl/graph/5/{named[1]}"))) == "train"
