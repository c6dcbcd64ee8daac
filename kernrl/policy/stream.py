"""Training rows from examples that are still being made: new ones first, and those seen before while there are none.

Order and number depend on how fast examples come, so unlike `PackedDataset` a stream is not repeatable.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Condition
from typing import Self

import numpy as np

from kernrl.errors import UsageError
from kernrl.policy.examples import Example
from kernrl.policy.packing import PackedRow, laid_out


@dataclass(frozen=True, slots=True)
class FlatExamples:
    """Many tokenised pairs end to end: cheap to send between processes. E examples, T tokens."""

    ids: np.ndarray
    """uint16 or int32 [T]"""
    lengths: np.ndarray
    """int32 [E], prompt and completion together"""
    prompts: np.ndarray
    """int32 [E]"""

    @classmethod
    def of(cls, examples: list[Example]) -> Self:
        """Lay examples end to end."""
        ids = [i for e in examples for part in (e.prompt_ids, e.completion_ids) for i in part]
        kind = np.uint16 if max(ids, default=0) < 2**16 else np.int32
        lengths = np.array([len(e) for e in examples], dtype=np.int32)
        return cls(np.array(ids, dtype=kind), lengths, np.array([len(e.prompt_ids) for e in examples], dtype=np.int32))


class ExampleStream:
    """Rows without end of the examples that `add` was given so far, by one thread while another reads rows.

    Args:
        row_tokens: N, the length of every row.
        max_length: of an example, in tokens.
        few: Wait for so many examples before the first row.
    """

    def __init__(self, row_tokens: int, pad_id: int, seed: int, max_length: int, few: int = 1):
        self.row_tokens, self.pad_id, self.max_seqlen, self.few = row_tokens, pad_id, max_length, few
        self.seen, self.drawn = 0, 0
        """Examples that came, and draws."""
        self.failed: BaseException | None = None
        """What ended the making of examples, if it was an error."""
        self._random = np.random.Generator(np.random.PCG64([seed, 1]))
        self._parts: list[FlatExamples] = []
        self._where: list[tuple[int, int, int, int]] = []  # part, start, length, prompt's length
        self._fresh: list[int] = []
        self._documents = 0
        self._changed = Condition()

    def add(self, part: FlatExamples) -> None:
        """Examples from now on."""
        starts = np.cumsum(part.lengths) - part.lengths
        found = zip(starts.tolist(), part.lengths.tolist(), part.prompts.tolist(), strict=True)
        with self._changed:
            number = len(self._parts)
            self._parts.append(part)
            for start, length, prompt in found:
                if length <= self.max_seqlen:
                    self._fresh.append(len(self._where))
                    self._where.append((number, start, length, prompt))
            self.seen = len(self._where)
            self._changed.notify_all()

    def complete(self) -> None:
        """There will be no more examples: those that came are drawn again."""
        with self._changed:
            self.few = 1
            if not self._where:
                self.failed = UsageError("No pair is left to learn from: give a higher --count or --max-length.")
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """There will be no more examples; raised where rows are read."""
        with self._changed:
            self.failed = error
            self._changed.notify_all()

    def rows(self) -> Iterator[PackedRow]:
        """Rows without end."""
        with self._changed:
            self._changed.wait_for(lambda: self.failed or len(self._where) >= self.few)
            if not self.failed:
                self._documents = self._most_documents()
        while True:
            if self.failed:
                raise self.failed
            yield self._row()

    def _most_documents(self) -> int:
        """As `PackedDataset.documents`, from the first examples."""
        lengths = np.array([length for _, _, length, _ in self._where])
        expected = self.row_tokens / lengths.mean()
        usual = math.ceil(expected + 4 * expected**0.5 * lengths.std() / lengths.mean())
        return max(usual, -(-self.row_tokens // self.max_seqlen)) + 2

    def _row(self) -> PackedRow:
        chosen, free = [], self.row_tokens
        with self._changed:
            while True:
                at = self._next()
                left = free - self._where[at][2]
                # what is left of a row is padding, in documents of the longest length
                if left < 0 or len(chosen) + 1 + -(-left // self.max_seqlen) > self._documents:
                    self._fresh.append(at)
                    break
                chosen.append(at)
                free = left
            self.drawn += len(chosen)
            where = [self._where[at] for at in chosen]
        ids = np.concatenate([self._parts[p].ids[s : s + n] for p, s, n, _ in where]).astype(np.int64)
        lengths = np.array([n for _, _, n, _ in where], dtype=np.int64)
        prompts = np.array([n for _, _, _, n in where], dtype=np.int64)
        # position t predicts token t + 1: the last prompt token predicts the first of the completion
        ends = np.cumsum(lengths)
        goals = np.append(ids[1:], -100)
        goals[ends - 1] = -100
        position = np.arange(len(ids)) - np.repeat(ends - lengths, lengths)
        goals[position < np.repeat(prompts - 1, lengths)] = -100
        shares = (goals >= 0).astype(np.float32)
        return laid_out(ids, goals, shares, lengths, self.row_tokens, self.pad_id, self.max_seqlen, self._documents)

    def _next(self) -> int:
        """The number of a new example, or of any where none is new."""
        if not self._fresh:
            return int(self._random.integers(len(self._where)))
        at = int(self._random.integers(len(self._fresh)))
        self._fresh[at], self._fresh[-1] = self._fresh[-1], self._fresh[at]
        return self._fresh.pop()
