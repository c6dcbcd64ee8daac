"""Rollouts as rows of tokens for the policy loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kernrl.policy.examples import Example
from kernrl.policy.packing import PackedDataset, PackedRow
from kernrl.policy.ranks import Ranks

ROW_STEP = 256
"""A row that holds all rollouts is cut to a multiple of this: padding costs as much as any other token."""


@dataclass(slots=True)
class LossRow:
    """A packed row of rollouts with the inputs of the policy loss. N = tokens of the row.

    As in `PackedRow`, position t holds the values of token t + 1; `row.weights` are the advantages.
    """

    row: PackedRow
    max_seqlen: int
    """Bound on the row's document lengths, in tokens."""
    num_sequences: int
    """Rollouts in this row."""
    rollout_logprobs: Tensor | None
    """float32 [N]: log-probs noted while sampling; None where the engine gives none."""
    old_logprobs: Tensor | None = None
    """float32 [N]: under the policy before the step's first update; None where there is only one update."""
    ref_logprobs: Tensor | None = None
    """float32 [N]: under the reference model."""

    def to(self, device: torch.device) -> LossRow:
        """The same row on `device`, without `old_logprobs` and `ref_logprobs`."""
        noted = self.rollout_logprobs
        return LossRow(self.row.to(device), self.max_seqlen, self.num_sequences, None if noted is None else noted.to(device))

    def idle(self) -> LossRow:
        """A row of the same shape from which nothing is learnt."""
        row = replace(self.row, targets=torch.full_like(self.row.targets, -100), num_targets=0)
        return replace(self, row=row, num_sequences=0)

    @property
    def mask(self) -> Tensor:
        """bool [N]: positions whose next token was sampled."""
        return self.row.targets >= 0


def rows_of_rank(rows: Sequence[LossRow], ranks: Ranks, device: torch.device) -> list[LossRow]:
    """This rank's rows of an update, on its device. All ranks get equally many: the last may get an idle row."""
    idle = [rows[-1].idle() for _ in range(-len(rows) % ranks.size)]
    return [row.to(device) for row in [*rows, *idle][ranks.index :: ranks.size]]


def pack_rollouts(
    examples: Sequence[Example], logprobs: Sequence[Sequence[float] | None], *, row_tokens: int, pad_id: int
) -> Iterator[LossRow]:
    """Lay rollouts end to end in rows of `row_tokens`, in the order given; if all fit into one row, it is cut to their length.

    Args:
        examples: prompt and sampled tokens, with the advantage as weight; none longer than `row_tokens`.
        logprobs: of the sampled tokens of each example.
    """
    tokens = sum(map(len, examples))
    row_tokens = min(row_tokens, -(-tokens // ROW_STEP) * ROW_STEP)
    data = PackedDataset(examples, row_tokens, pad_id, seed=None)
    for members in data.epoch_rows(0):
        row = data.pack(members)
        noted = [logprobs[m] for m in members]
        rollout_logprobs = None
        if all(values is not None for values in noted):
            rollout_logprobs = torch.zeros(row_tokens)
            # a row's targets are its members' completions, one after the other
            rollout_logprobs[row.targets >= 0] = torch.tensor([x for values in noted for x in values or ()])
        yield LossRow(row, data.max_seqlen, len(members), rollout_logprobs)
