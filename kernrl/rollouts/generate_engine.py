"""The embedded engine: transformers' `generate` on the policy itself, handing out each rollout the moment it ends."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from kernrl.kernels import token_logprobs
from kernrl.policy.load import Policy
from kernrl.rollouts.engine import NamedTensors, Rollout, Sampling

CHECK_EVERY = 8
"""Decoding steps between looks at which rows have ended: a look waits for the GPU."""


class GenerateEngine:
    """Samples with transformers' `generate`.

    Prompts are repeated n times, sorted by length so that little is padded, and decoded `batch_size` rows at a time. The
    random stream of a batch is a function of the seed and the batch's number alone; the global one is left as it was.

    Args:
        policy: what to sample from.
        batch_size: rows decoded at once.
        dtype: sample from a copy of the weights in this dtype, refreshed by `sync`; None samples from the policy's own,
            which change under it and need no sync.
    """

    def __init__(self, policy: Policy, *, batch_size: int = 256, dtype: torch.dtype | None = None):
        self._trained: Any = policy.model
        self._model: Any = self._trained
        if dtype is not None and dtype != policy.head_weight.dtype:
            self._model = copy.deepcopy(self._trained).to(dtype).requires_grad_(False)
        self._batch_size = batch_size
        self._pad_id: Any = policy.tokenizer.pad_token_id
        self._context: int = policy.model.config.max_position_embeddings
        self._version = 0

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[Rollout]:
        """See `RolloutEngine.generate`. Decoding goes on in a thread while the caller looks at what has ended."""
        ended: SimpleQueue[Rollout | None] = SimpleQueue()
        cancelled = Event()
        with ThreadPoolExecutor(1, "generate") as thread:
            decoding = thread.submit(self._decode_all, prompts, sampling, ended.put, cancelled)
            decoding.add_done_callback(lambda _: ended.put(None))
            try:
                while (rollout := ended.get()) is not None:
                    yield rollout
            finally:
                cancelled.set()
            decoding.result()

    def sync(self, named: NamedTensors, version: int) -> None:
        """See `RolloutEngine.sync`."""
        if self._model is not self._trained:
            mine = dict(self._model.named_parameters())
            with torch.no_grad():
                for name, tensor in named():
                    if name in mine:  # a tied head is listed once
                        mine[name].copy_(tensor)
        self._version = version

    def close(self) -> None:
        """See `RolloutEngine.close`: nothing outlives a call."""

    def _decode_all(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, emit: Callable[[Rollout], None], cancelled: Event
    ) -> None:
        order = sorted(range(len(prompts)), key=lambda p: (len(prompts[p]), p))
        rows = [(p, s) for p in order for s in range(sampling.n)]
        for number, start in enumerate(range(0, len(rows), self._batch_size)):
            if cancelled.is_set():
                return
            batch = _Batch(rows[start : start + self._batch_size], sampling, self._version, emit, cancelled)
            self._decode([prompts[p] for p, _ in batch.rows], batch, number)

    def _decode(self, prompts: list[Sequence[int]], batch: _Batch, number: int) -> None:
        sampling, longest = batch.sampling, max(map(len, prompts))
        room = min(sampling.max_tokens, self._context - longest)
        if room < 1:
            return batch.fail()
        ids = torch.full((len(prompts), longest), self._pad_id)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask = torch.arange(longest) >= torch.tensor([[longest - len(p)] for p in prompts])
        device = self._model.device
        settings = GenerationConfig(
            do_sample=True,
            temperature=1.0,  # _Batch divides by it, and so sees what is sampled from
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_new_tokens=room,
            eos_token_id=list(sampling.stop_ids) or None,
            pad_token_id=self._pad_id,
        )
        training = self._model.training
        self._model.eval()
        cuda = [device] if device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices=cuda), torch.no_grad(), _current(device):
                torch.manual_seed(int(np.random.SeedSequence([sampling.seed, number]).generate_state(1)[0]))
                output = self._model.generate(
                    ids.to(device),
                    attention_mask=mask.long().to(device),
                    generation_config=settings,
                    logits_processor=LogitsProcessorList([_Before(batch)]),
                    stopping_criteria=StoppingCriteriaList([_After(batch)]),
                )
            batch.finish(output[:, longest:])
        finally:
            self._model.train(training)


@dataclass
class _Batch:
    """Rides along one `generate` call: notes the log-prob of every sampled token and hands out rows as they end."""

    rows: list[tuple[int, int]]
    """(prompt, sample) of each row."""
    sampling: Sampling
    version: int
    emit: Callable[[Rollout], None]
    cancelled: Event
    scaled: Tensor | None = None
    """float32 [B, V]: the logits of the step that is being sampled, over the temperature."""
    tokens: list[Tensor] = field(default_factory=list)
    logprobs: list[Tensor] = field(default_factory=list)
    """One [B] tensor a step."""
    handed_out: set[int] = field(default_factory=set)

    def before(self, logits: Tensor) -> Tensor:
        self.scaled = logits / self.sampling.temperature
        return self.scaled

    def after(self, sampled: Tensor) -> bool:
        assert self.scaled is not None
        self.tokens.append(sampled)
        self.logprobs.append(token_logprobs(self.scaled, sampled, temperature=1.0)[0])
        if len(self.tokens) % CHECK_EVERY == 0:
            self.hand_out_ended()
        return self.cancelled.is_set()

    def hand_out_ended(self) -> None:
        recent = torch.stack(self.tokens[-CHECK_EVERY:])
        ended = torch.isin(recent, torch.tensor(self.sampling.stop_ids, device=recent.device)).any(dim=0)
        rows = [row for row in ended.nonzero()[:, 0].tolist() if row not in self.handed_out]
        if rows:
            self.hand_out(rows)

    def hand_out(self, rows: list[int]) -> None:
        index = torch.tensor(rows, device=self.tokens[0].device)
        tokens = torch.stack([step[index] for step in self.tokens]).T.tolist()
        logprobs = torch.stack([step[index] for step in self.logprobs]).T.tolist()
        exact = self.sampling.top_p == 1.0 and self.sampling.top_k == 0
        for row, ids, values in zip(rows, tokens, logprobs, strict=True):
            length = next((n for n, token in enumerate(ids, start=1) if token in self.sampling.stop_ids), None)
            finish = "stop" if length else "length"
            prompt, sample = self.rows[row]
            self.handed_out.add(row)
            self.emit(Rollout(prompt, sample, ids[:length], values[:length] if exact else None, finish, self.version))

    def finish(self, generated: Tensor) -> None:
        if self.cancelled.is_set():
            return
        # some releases look for the end a step late and decode one step too many
        del self.tokens[generated.shape[1] :], self.logprobs[generated.shape[1] :]
        rest = [row for row in range(len(self.rows)) if row not in self.handed_out]
        if rest:
            self.hand_out(rest)

    def fail(self) -> None:
        for prompt, sample in self.rows:
            self.emit(Rollout(prompt, sample, [], None, "error", self.version))


class _Before(LogitsProcessor):
    def __init__(self, batch: _Batch):
        self.batch = batch

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return self.batch.before(scores)


class _After(StoppingCriteria):
    def __init__(self, batch: _Batch):
        self.batch = batch

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        stop = self.batch.after(input_ids[:, -1])
        return torch.full((input_ids.shape[0],), stop, dtype=torch.bool, device=input_ids.device)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """A thread starts on GPU 0, and kernels are launched on the current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
