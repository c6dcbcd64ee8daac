"""The rows that are decoded together: hands each out as a rollout soon after it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Event

import torch
from torch import Tensor

from kernrl.rollouts.engines.engine import Finish, Rollout, Sampling

CHECK_EVERY = 8
"""Decoding steps between checks for rows that have ended: each check waits for the GPU."""


@dataclass
class DecodingBatch:
    """Which rows of a batch have ended. What was decoded is handed in: tokens int64 and log-probs float32 [steps, B]."""

    rows: list[tuple[int, int]]
    """(prompt, sample) of each row."""
    sampling: Sampling
    version: int
    emit: Callable[[Rollout], None]
    cancelled: Event
    started: float
    """When the call began, by the performance counter."""
    on_tokens: Callable[[int], None] = lambda tokens: None
    handed_out: set[int] = field(default_factory=set)
    _stop_ids: Tensor | None = None
    """`sampling.stop_ids` on the GPU."""

    @property
    def ended(self) -> bool:
        return len(self.handed_out) == len(self.rows)

    def check(self, tokens: Tensor, logprobs: Tensor) -> list[int]:
        """To be called every `CHECK_EVERY` steps: hands out the rows that have ended in the last ones, and returns them."""
        self.on_tokens(CHECK_EVERY * (len(self.rows) - len(self.handed_out)))
        if self._stop_ids is None:
            self._stop_ids = torch.tensor(self.sampling.stop_ids, dtype=torch.int64, device=tokens.device)
        ended = torch.isin(tokens[-CHECK_EVERY:], self._stop_ids).any(dim=0)
        return self._hand_out(ended.nonzero()[:, 0].tolist(), tokens, logprobs)

    def finish(self, tokens: Tensor, logprobs: Tensor) -> None:
        """Hand out all rows that are left, unless the batch is cancelled."""
        if not self.cancelled.is_set():
            self._hand_out(list(range(len(self.rows))), tokens, logprobs)

    def fail(self) -> None:
        """Hand out all rows as errors."""
        for row in range(len(self.rows)):
            self._end(row, [], None, "error")

    def _hand_out(self, rows: list[int], tokens: Tensor, logprobs: Tensor) -> list[int]:
        """Emit those of `rows` that were not emitted before, and return them."""
        rows = [row for row in rows if row not in self.handed_out]
        if not rows:
            return rows
        exact = self.sampling.whole
        decoded = zip(rows, tokens[:, rows].T.tolist(), logprobs[:, rows].T.tolist(), strict=True)
        for row, ids, values in decoded:
            length = next((n for n, token in enumerate(ids, start=1) if token in self.sampling.stop_ids), None)
            finish = "stop" if length else "length"
            self.handed_out.add(row)
            self._end(row, ids[:length], values[:length] if exact else None, finish)
        return rows

    def _end(self, row: int, ids: list[int], logprobs: list[float] | None, finish: Finish) -> None:
        prompt, sample = self.rows[row]
        ended_s = time.perf_counter() - self.started
        self.emit(Rollout(prompt, sample, ids, logprobs, finish, self.version, ended_s))
