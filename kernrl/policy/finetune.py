"""Supervised steps on packed rows: the one training loop of SFT, best-of-N and reward-weighted SFT."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from kernrl.kernels import linear_cross_entropy
from kernrl.policy.attention import packed_kwargs
from kernrl.policy.checkpoint import read_json, write_json
from kernrl.policy.flops import TrainingFlops
from kernrl.policy.load import Policy
from kernrl.policy.muon import Muon
from kernrl.policy.packing import PackedDataset, PackedRow
from kernrl.policy.parallel import accumulating, clip_gradients, load_optimizer, save_training, wrap_for_ranks
from kernrl.policy.ranks import Ranks
from kernrl.policy.stream import ExampleStream

T = TypeVar("T")

WARMUP_STEPS = 200
"""Steps in which the rate rises where there is a deadline, and so no number of steps."""


FINAL_RATIO = 0.1
"""The last step's learning rate over the highest."""


def falling(schedule: Literal["cosine", "linear", "constant"], progress: float) -> float:
    """The factor of a learning rate after this share of the run: from 1 to 0 along a cosine or a line; always 1 if constant."""
    if schedule == "constant":
        return 1.0
    return 1 - progress if schedule == "linear" else 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True, slots=True)
class FinetuneSettings:
    """Everything that determines the trained weights, besides the data and the weights at the start."""

    steps: int
    """Total optimizer steps."""
    rows_per_step: int
    """Packed rows a step, on all ranks together."""
    learning_rate: float
    warmup_ratio: float = 0.03
    """Share of the steps in which the rate rises linearly; then it falls by `schedule`."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    weight_decay: float = 0.1
    """On matrices only; norms and biases are left alone."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """`muon`: for the matrices of the layers; embeddings, norms and biases stay with AdamW."""
    deadline: float = math.inf
    """The time, by `time.perf_counter` on rank 0, at which the last step begins, whatever `steps` says."""
    max_grad_norm: float = 1.0
    adam_epsilon: float = 1e-8
    """What AdamW adds to the root mean square of a weight's gradient before it divides by it."""


class PackedLoss(torch.nn.Module):
    """A policy with its cross-entropy on top: one module with one forward, for DDP and FSDP2 to wrap.

    The head runs inside the fused loss: the logits of a row are never all in memory. Only this module's call is compiled; the
    policy itself stays as it is, to be sampled from and saved.
    """

    def __init__(self, policy: Policy, ranks: Ranks, *, compile_model: bool = False):
        super().__init__()
        self.model = policy.model
        self._policy, self._ranks = policy, ranks
        self._decode = torch.compile(self._hidden, dynamic=False) if compile_model else self._hidden

    def forward(self, row: PackedRow, max_seqlen: int, num_tokens: float, dtype: torch.dtype) -> Tensor:
        """Weighted cross-entropy summed over the row's targets and divided by `num_tokens`, in nats.

        Args:
            max_seqlen: bound on the row's document lengths, in tokens.
            dtype: of hidden states and head weight in the loss (products are accumulated in float32).
        """
        with self._ranks.autocast():
            # without gradients it would be compiled once more, for a few rows
            decode = self._decode if torch.is_grad_enabled() else self._hidden
            hidden = decode(row.input_ids, row.position_ids, row.cu_seqlens, max_seqlen)
        weight = self._policy.head_weight
        loss, _ = linear_cross_entropy(
            hidden.to(dtype), weight.to(dtype), row.targets, token_weights=row.weights, num_tokens=num_tokens
        )
        return loss

    def _hidden(self, input_ids: Tensor, position_ids: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """[N, H]: the decoder's last hidden states."""
        extra = packed_kwargs(position_ids, cu_seqlens, max_seqlen)
        return self._policy.base(input_ids=input_ids, **extra).last_hidden_state[0]


class Finetuner:
    """A policy being trained: optimizer, schedule and position in the data.

    Args:
        ranks: the processes that train together.
        policy: its weights are changed in place.
        data: the packed training rows; a stream of its own for each rank.
        compile_model: compile the decoder; pays from about a hundred steps.
        loss: the `loss` of an earlier Finetuner of this policy, which is wrapped for several ranks already.
    """

    def __init__(
        self,
        ranks: Ranks,
        policy: Policy,
        data: PackedDataset | ExampleStream,
        settings: FinetuneSettings,
        *,
        compile_model: bool = False,
        loss: torch.nn.Module | None = None,
    ):
        self.ranks, self.policy, self.data, self.settings = ranks, policy, data, settings
        self.device = ranks.accelerator.device
        self.step = 0
        self.last = False
        """The step that is being taken is the last."""
        self.left_s = settings.deadline - time.perf_counter()
        self._all_s = self.left_s
        self._flops = TrainingFlops.of(policy)
        if loss is None:
            # FSDP2 gathers weights between layers, so sharded layers are compiled one by one
            own = PackedLoss(policy, ranks, compile_model=compile_model and not ranks.sharded)
            loss = wrap_for_ranks(ranks, own, policy, compile_layers=compile_model)
        self.loss = loss
        self.optimizer = _optimizer(policy, settings)
        self._dtype = torch.bfloat16 if ranks.accelerator.mixed_precision == "bf16" else policy.head_weight.dtype

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then a cosine or a line down to FINAL_RATIO, or the same rate to the end.

        Where there is a deadline, the rate falls by the time, from the second step on: the first one compiles.
        """
        s = self.settings
        timed = s.deadline < math.inf
        warmup = WARMUP_STEPS if timed else max(1, round(s.warmup_ratio * s.steps))
        rise = min(1.0, (step + 1) / warmup)
        if s.schedule == "constant" or (rise < 1 and not timed):
            return s.learning_rate * rise
        progress = 1 - max(0.0, self.left_s) / self._all_s if timed else max(0, step - warmup) / max(1, s.steps - warmup)
        left = falling(s.schedule, progress)
        if timed:
            return s.learning_rate * rise * left
        return s.learning_rate * (FINAL_RATIO + (1 - FINAL_RATIO) * left)

    def run(self, on_step: Callable[[dict[str, Any]], None]) -> None:
        """Train from the current step to the last; `on_step` gets the metrics after each.

        Padding does not count in speeds: `tokens_per_s` is over all ranks, `tflops` (see `TrainingFlops`) of one device.
        """
        self.policy.model.train()
        upcoming = _ahead(self._pinned(row) for row in self._dealt())
        batch, waited = self._next_batch(upcoming)
        while self.step < self.settings.steps and not self.last:
            started = time.perf_counter()
            tokens, targets, pairs, left_ms = self._counts(batch)
            self.left_s = left_ms / 1000
            if self.step < 2:
                self._all_s = max(self.left_s, 1e-3)
            self.last = self.step + 1 == self.settings.steps or left_ms <= 0
            loss_and_norm = self._train_step(batch, targets)
            # while the GPU works; `data_wait_s` is the time that this takes
            batch, next_waited = self._next_batch(upcoming)
            loss, norm = loss_and_norm.tolist()
            metrics = {"loss": loss, "grad_norm": norm, "learning_rate": self.learning_rate(self.step)}
            self.step += 1
            seconds = time.perf_counter() - started
            flops = self._flops.total(tokens=tokens, targets=targets, pairs=pairs) / self.ranks.size
            speed = {"tokens_per_s": tokens / seconds, "tflops": flops / seconds / 1e12}
            on_step({"step": self.step, **metrics, "seconds": seconds, "data_wait_s": waited, **speed})
            waited = next_waited

    def _next_batch(self, upcoming: Iterator[PackedRow]) -> tuple[list[PackedRow], float]:
        """This rank's rows of the next step, on its device, and the seconds spent waiting for them."""
        started = time.perf_counter()
        batch = [next(upcoming).to(self.device) for _ in range(-(-self.settings.rows_per_step // self.ranks.size))]
        return batch, time.perf_counter() - started

    def _counts(self, batch: list[PackedRow]) -> list[int]:
        """Tokens, targets and pairs of a step on all ranks together, and the milliseconds left by rank 0's clock."""
        counts = torch.tensor([[row.num_tokens, row.num_targets, row.num_pairs, 0] for row in batch]).sum(0)
        if self.ranks.leads and self.settings.deadline < math.inf:
            counts[3] = round(1000 * (self.settings.deadline - time.perf_counter()))
        elif self.ranks.leads:
            counts[3] = 1
        return (self.ranks.sum(counts.to(self.device)) if self.ranks.size > 1 else counts).tolist()

    def _dealt(self) -> Iterator[PackedRow]:
        """This rank's rows from the current step on. Every rank has equally many in a step, as all must run equally often.

        Missing rows are filled with padding alone.
        """
        size, each = self.ranks.size, self.settings.rows_per_step
        if isinstance(self.data, ExampleStream):
            yield from self.data.rows()
            return
        members = self.data.members(self.step * each)
        while True:
            step = list(islice(members, each)) + [[] for _ in range(-each % size)]
            yield from map(self.data.pack, step[self.ranks.index :: size])

    def _train_step(self, batch: list[PackedRow], targets: int) -> Tensor:
        """One update on this rank's rows; `targets` are those of all ranks. Returns loss and gradient norm, [2]."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.step)
        num_tokens = targets / self.ranks.size  # gradients are averaged over ranks
        total = torch.zeros((), device=self.device)
        for number, row in enumerate(batch, start=1):
            with accumulating(self.loss, last=number == len(batch)):
                loss = self.loss(row, self.data.max_seqlen, num_tokens, self._dtype)
                loss.backward()
            total += loss.detach()
        norm = clip_gradients(self.loss.parameters(), self.settings.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return torch.stack([self.ranks.sum(total) / self.ranks.size, norm.float()])

    @torch.no_grad()
    def evaluate(self, data: PackedDataset) -> float:
        """Weighted mean loss over the targets of `data`, in nats a token. Every rank evaluates its share."""
        self.policy.model.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        rows = data.epoch_rows(0)
        # ranks that share weights must run equally often: the last round is filled with rows of padding alone
        rows = rows + [[] for _ in range(-len(rows) % self.ranks.size)]
        for members in rows[self.ranks.index :: self.ranks.size]:
            row = data.pack(members).to(self.device)
            loss = self.loss(row, data.max_seqlen, 1.0, self._dtype)
            sums += torch.stack([loss.double(), row.weights.sum().double()])
        self.policy.model.train()
        total = self.ranks.sum(sums)
        return float(total[0] / total[1])

    def save(self, folder: Path) -> None:
        """Write the weights as they are trained, the optimizer, and the position; every rank calls this."""
        save_training(self.ranks, self.policy, self.optimizer, folder)
        if self.ranks.leads:
            write_json(folder / "finetune_state.json", {"step": self.step, "torch_rng": torch.get_rng_state().tolist()})

    def restore(self, folder: Path) -> None:
        """Resume from what `save` wrote; the policy's weights were loaded from the same folder."""
        load_optimizer(self.ranks, self.policy, self.optimizer, folder)
        state = read_json(folder / "finetune_state.json")
        self.step = state["step"]
        torch.set_rng_state(torch.tensor(state["torch_rng"], dtype=torch.uint8))

    def _pinned(self, row: PackedRow) -> PackedRow:
        return row.pin() if self.device.type == "cuda" else row


def _optimizer(policy: Policy, settings: FinetuneSettings) -> torch.optim.AdamW:
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    turned: list[Tensor] = []
    if settings.optimizer == "muon":
        layers: Any = policy.base.layers
        turned = [p for p in layers.parameters() if p.requires_grad and p.dim() == 2]
    known = set(map(id, turned))
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.dim() >= 2 and id(p) not in known], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    if turned:
        groups.append({"params": turned, "weight_decay": settings.weight_decay})
        groups = [{**group, "muon": group["params"] is turned} for group in groups]
    on_gpu = any(p.is_cuda for p in parameters)
    kind = Muon if turned else torch.optim.AdamW
    return kind(groups, lr=settings.learning_rate, betas=(0.9, 0.95), eps=settings.adam_epsilon, fused=on_gpu)


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items; a thread makes the next one while the current one is used."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items)
        while True:
            item = coming.result()
            coming = thread.submit(next, items)
            yield item
