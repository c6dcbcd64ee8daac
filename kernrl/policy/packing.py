"""Packing: examples of any length laid end to end in rows of one fixed length.

A row is a pure function of (examples, seed, row number), so a run resumed at any step, on any number of ranks, gets the rows
that it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, count, islice

import numpy as np
import torch
from torch import Tensor

from kernrl.policy.examples import Example


@dataclass(frozen=True, slots=True)
class PackedRow:
    """`row_tokens` tokens of whole examples, the rest padding. N = row_tokens, D = documents rounded up."""

    input_ids: Tensor
    """int64 [1, N]"""
    position_ids: Tensor
    """int64 [1, N], restarting in every document"""
    targets: Tensor
    """int64 [N]: the next token, or -100 where there is no loss (prompts, last tokens, padding)"""
    weights: Tensor
    """float32 [N]: loss weight of each position"""
    cu_seqlens: Tensor
    """int32 [D + 1]; padded with N to a fixed length, so that compiled code is reused"""
    num_tokens: int
    """Tokens that are not padding."""
    num_targets: int
    """Positions with a target in this row."""
    num_pairs: int
    """(query, key) pairs within its documents: what causal attention costs."""

    def to(self, device: torch.device | str) -> PackedRow:
        """The same row with its tensors on `device`."""
        return self._map(lambda t: t.to(device, non_blocking=True))

    def pin(self) -> PackedRow:
        """The same row in page-locked memory, for asynchronous copies to a GPU."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> PackedRow:
        return replace(
            self,
            input_ids=change(self.input_ids),
            position_ids=change(self.position_ids),
            targets=change(self.targets),
            weights=change(self.weights),
            cu_seqlens=change(self.cu_seqlens),
        )


class PackedDataset:
    """Rows of packed examples, shuffled anew in every epoch.

    Args:
        examples: all of at most `row_tokens` tokens (longer ones are the caller's to refuse).
        row_tokens: N, the length of every row.
        pad_id: token that fills the rest of a row.
        seed: of the shuffles; None keeps the order (evaluation).
    """

    def __init__(self, examples: Sequence[Example], row_tokens: int, pad_id: int, seed: int | None):
        self.examples, self.row_tokens, self.pad_id, self.seed = examples, row_tokens, pad_id, seed
        self._lengths = np.array([len(e) for e in examples], dtype=np.int64)
        assert len(examples) > 0
        assert self._lengths.max() <= row_tokens
        # all examples end to end, so that a few NumPy calls gather a row: rows are packed in a thread during training, and
        # loops over lists would hold the interpreter lock
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._ids = _flat(np.int32, (part for e in examples for part in (e.prompt_ids, e.completion_ids)))
        # position t predicts token t + 1: the last prompt token predicts the first of the completion
        parts = (([-100] * (len(e.prompt_ids) - 1), e.completion_ids, [-100]) for e in examples)
        self._targets = _flat(np.int32, chain.from_iterable(parts))
        self._weights = np.repeat(np.array([e.weight for e in examples], dtype=np.float32), self._lengths)
        self._weights[self._targets < 0] = 0
        self._epochs: dict[int, list[list[int]]] = {}

    def epoch_rows(self, epoch: int) -> list[list[int]]:
        """The example numbers of each row of one epoch."""
        if epoch not in self._epochs:
            order = np.arange(len(self.examples))
            if self.seed is not None:
                np.random.Generator(np.random.PCG64([self.seed, epoch])).shuffle(order)
            self._epochs = {epoch: _next_fit(order, self._lengths, self.row_tokens, self.documents)}
        return self._epochs[epoch]

    @cached_property
    def rows_per_epoch(self) -> int:
        """Rows in the first epoch; later ones differ by a row or so, as each shuffle packs differently."""
        return len(self.epoch_rows(0))

    @property
    def max_seqlen(self) -> int:
        """Length of the longest example, in tokens."""
        return int(self._lengths.max())

    @cached_property
    def documents(self) -> int:
        """Most documents of a row, padding included: the length of every row's `cu_seqlens`, less one.

        Attention starts programs for all of them, even empty ones. So this is not N over the shortest length, but four
        standard deviations above the documents of a row of shuffled examples (renewal theory: N/μ with deviation √N·σ/μ^1.5).
        """
        expected = self.row_tokens / self._lengths.mean()
        deviation = expected**0.5 * self._lengths.std() / self._lengths.mean()
        return min(math.ceil(expected + 4 * deviation), self.row_tokens // int(self._lengths.min())) + 2

    def rows(self, start_row: int = 0) -> Iterator[PackedRow]:
        """Rows without end, epoch after epoch, from row number `start_row` of the whole run."""
        return map(self.pack, self.members(start_row))

    def members(self, start_row: int = 0) -> Iterator[list[int]]:
        """The example numbers of each of those rows."""
        return islice(chain.from_iterable(map(self.epoch_rows, count())), start_row, None)

    def pack(self, members: Sequence[int]) -> PackedRow:
        """One row of the given examples."""
        lengths = self._lengths[list(members)]
        position = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        source = position + np.repeat(self._starts[list(members)], lengths)
        texts = (self._ids[source], self._targets[source], self._weights[source])
        return laid_out(*texts, lengths, self.row_tokens, self.pad_id, self.max_seqlen, self.documents)


def laid_out(
    ids: np.ndarray,
    goals: np.ndarray,
    shares: np.ndarray,
    lengths: np.ndarray,
    row_tokens: int,
    pad_id: int,
    max_seqlen: int,
    documents: int,
) -> PackedRow:
    """A row of documents end to end, filled up with padding.

    Args:
        ids, goals, shares: token, target and weight of each position of the documents.
        lengths: int64, of the documents.
        max_seqlen: of any document, padding included.
        documents: most documents of a row, padding included.
    """
    n, num_tokens = row_tokens, int(lengths.sum())
    input_ids = np.full(n, pad_id, dtype=np.int64)
    position_ids = np.zeros(n, dtype=np.int64)
    targets = np.full(n, -100, dtype=np.int64)
    weights = np.zeros(n, dtype=np.float32)
    input_ids[:num_tokens] = ids
    position_ids[:num_tokens] = np.arange(num_tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    targets[:num_tokens] = goals
    weights[:num_tokens] = shares
    bounds = [0, *np.cumsum(lengths).tolist()]
    # padding is split into documents no longer than the longest example, so that max_seqlen holds for every row
    while bounds[-1] < n:
        end = min(n, bounds[-1] + max_seqlen)
        position_ids[bounds[-1] : end] = np.arange(end - bounds[-1])
        bounds.append(end)
    cu_seqlens = np.full(documents + 1, n, dtype=np.int32)
    cu_seqlens[: len(bounds)] = bounds
    return PackedRow(
        input_ids=torch.from_numpy(input_ids)[None],
        position_ids=torch.from_numpy(position_ids)[None],
        targets=torch.from_numpy(targets),
        weights=torch.from_numpy(weights),
        cu_seqlens=torch.from_numpy(cu_seqlens),
        num_tokens=num_tokens,
        num_targets=int((targets >= 0).sum()),
        num_pairs=int((lengths * (lengths + 1) // 2).sum()),
    )


def _flat(dtype: type, parts: Iterable[list[int]]) -> np.ndarray:
    return np.fromiter(chain.from_iterable(parts), dtype=dtype)


def _next_fit(order: np.ndarray, lengths: np.ndarray, row_tokens: int, documents: int) -> list[list[int]]:
    """Fill rows in order; an example that does not fit starts the next row. Wastes half an example a row on average.

    An example also starts the next row where this one, filled up with padding in documents of the longest length, would hold
    more than `documents`.
    """
    rows: list[list[int]] = []
    longest, free = int(lengths.max()), 0
    for member in order.tolist():
        length = int(lengths[member])
        if length > free or len(rows[-1]) + 1 + -(-(free - length) // longest) > documents:
            rows.append([])
            free = row_tokens
        rows[-1].append(member)
        free -= length
    return rows
