"""Pairs of Graphs made, written and tokenised by worker processes while the model trains on those before."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import deque
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from threading import Event, Thread
from typing import Any, Self

from transformers import PreTrainedTokenizerBase

from kernrl.config import SftConfig
from kernrl.policy.pairs import Pair
from kernrl.policy.ranks import Ranks
from kernrl.policy.stream import ExampleStream, FlatExamples
from kernrl.signals import blocked_interrupts
from kernrl.tasks.nano.graph_pairs import CHUNK, GraphPair, chunk_of_pairs
from kernrl.training.pair_chunks import flat, made, pair_of, ready
from kernrl.training.sft_data import pairs_made, tasks_to_make

log = logging.getLogger(__name__)

AHEAD = 3
"""Chunks that wait for a worker, for each worker."""

VALIDATION_CHUNKS = 40
"""Most chunks that are looked through for pairs of the validation split, about one Graph in twenty: three of a chunk."""

FAILED_SHARE = 0.02
"""Of the chunks, that may fail before the run does."""

FEW = 2_000
"""Pairs of a rank before its first row, or all that there will be."""


class PairStream:
    """The workers of one rank: they make every `ranks.size`-th chunk, as text until there is a tokenizer.

    Raises, from `first` or where rows are read, what ended a worker.
    """

    def __init__(self, config: SftConfig, ranks: Ranks):
        self.config, self.ranks = config, ranks
        cores = config.workers or max(2, len(os.sched_getaffinity(0)) - ranks.size)
        self._workers = max(1, cores // ranks.size)
        self._folder = config.output / "tokenizer"
        spawned = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(self._workers, mp_context=spawned, initializer=ready)
        self._coming: deque[Future[Any]] = deque()
        self._number = ranks.index
        self._chunks_left = -(-tasks_to_make(config) // (CHUNK * ranks.size))
        self._texts: list[GraphPair] = []
        self._failed = 0
        self._stop = Event()
        self._thread: Thread | None = None
        self._held_out = max(10, tasks_to_make(config) // 100)
        with blocked_interrupts():  # the first chunks start the processes
            draws = range(min(VALIDATION_CHUNKS, self._held_out // 2) if ranks.leads else 0)
            work = partial(chunk_of_pairs, seed=config.seed, split="validation", **pairs_made(config))
            self._validation = [self._pool.submit(work, number) for number in draws]
            self._fill()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._thread:
            self._thread.join()

    def first(self, count: int) -> list[Pair]:
        """The first pairs of this rank, for the tokenizer; they are learnt from like all others."""
        while len(self._texts) < count and self._coming:
            self._texts += self._next()
        return [pair_of(p) for p in self._texts]

    def validation(self) -> list[Pair]:
        """Pairs of compositions that are not trained on; rank 0 has them."""
        graphs = [pairs for future in self._validation for pairs in future.result()]
        return [pair_of(p) for pairs in graphs[: self._held_out] for p in pairs]

    def start(self, tokenizer: PreTrainedTokenizerBase, row_tokens: int, max_length: int) -> ExampleStream:
        """The stream of examples, which a thread fills from now on."""
        pad: Any = tokenizer.pad_token_id
        stream = ExampleStream(row_tokens, pad, self.config.seed + self.ranks.index, max_length, FEW)
        self.ranks.lead(lambda: self._write(tokenizer))
        self._thread = Thread(target=self._collect, args=(stream, tokenizer), daemon=True)
        self._thread.start()
        return stream

    def _write(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if self._folder.exists():  # the run goes on
            return
        part = self._folder.with_suffix(".part")
        tokenizer.save_pretrained(part)
        part.rename(self._folder)  # workers look for the folder

    def _fill(self) -> None:
        work = partial(made, seed=self.config.seed, folder=self._folder, **pairs_made(self.config))
        while len(self._coming) < AHEAD * self._workers and self._chunks_left > 0:
            self._coming.append(self._pool.submit(work, self._number))
            self._number += self.ranks.size
            self._chunks_left -= 1

    def _next(self) -> Any:
        try:
            return self._coming.popleft().result()
        except BrokenProcessPool:
            raise
        except Exception as error:  # one Graph that cannot be written must not end hours of training
            self._failed += 1
            if self._failed > FAILED_SHARE * self._number / self.ranks.size + 1:
                raise
            where = ", ".join(getattr(error, "__notes__", ()))
            log.warning("a chunk of pairs was left out: %s: %s (%s)", type(error).__name__, error, where)
            return []
        finally:
            self._fill()

    def _collect(self, stream: ExampleStream, tokenizer: PreTrainedTokenizerBase) -> None:
        try:
            texts, self._texts = self._texts, []
            for at in range(0, len(texts), 2048):
                stream.add(flat(texts[at : at + 2048], tokenizer))
            while self._coming and not self._stop.is_set():
                found = self._next()
                stream.add(found if isinstance(found, FlatExamples) else flat(found, tokenizer))
            stream.complete()
        except BaseException as error:
            if not self._stop.is_set():
                stream.fail(error)
