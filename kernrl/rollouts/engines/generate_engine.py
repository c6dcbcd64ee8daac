"""The embedded engine: transformers' `generate` on the policy itself, which yields each rollout as soon as it ends."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    StoppingCriteria,
    StoppingCriteriaList,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from kernrl.kernels import token_logprobs
from kernrl.policy.load import Policy
from kernrl.rollouts.engines.engine import Finish, NamedTensors, Rollout, Sampling

CHECK_EVERY = 8
"""Decoding steps between checks for rows that have ended: each check waits for the GPU."""

ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Without cuDNN's: it plans anew for every length, so for every token of a decode."""

UNBOUNDED = 2**31
"""Context, in tokens, of a model whose config has none."""

PROMPT_STEP = 128
"""Under `compile`, prompts are padded to a multiple of this."""


class GenerateEngine:
    """Samples with transformers' `generate`.

    Prompts are repeated n times, sorted by length so that there is little padding, and decoded `batch_size` rows at a time.
    A batch has a random stream of its own, a function of the seed and the batch's number alone. torch's global ones would not
    do: whoever exports or compiles a module in another thread sets them back, and the same numbers would be drawn again.

    Args:
        policy: what to sample from.
        batch_size: rows decoded at once.
        dtype: sample from a copy of the weights in this dtype, refreshed by `sync`; None samples from the policy's own
            weights, which need no sync.
        compile: decode with a cache of fixed size, so that transformers compiles the step on a GPU. The first calls are
            slow, and prompts are padded to multiples of `PROMPT_STEP` so that few shapes are compiled.
        deal: (rank, world): this engine decodes batches rank, rank + world, …; others with the same weights decode the rest.
        gpu_turn: context entered while a batch is decoded; with `HardenedVerifier.untimed`, nothing is timed on that GPU.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        batch_size: int = 256,
        dtype: torch.dtype | None = None,
        compile: bool = False,
        deal: tuple[int, int] = (0, 1),
        gpu_turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        self._trained: Any = policy.model
        self._model: Any = self._trained
        if dtype is not None and dtype != policy.head_weight.dtype:
            self._model = copy.deepcopy(self._trained).requires_grad_(False)
            for parameter in self._model.parameters():  # not `.to(dtype)`, which would round the rotary frequencies too
                parameter.data = parameter.data.to(dtype)
        self._batch_size, self._compile, self._gpu_turn = batch_size, compile, gpu_turn
        self._number, self._engines = deal
        self._pad_id: Any = policy.tokenizer.pad_token_id
        self._context: int = getattr(policy.model.config, "max_position_embeddings", UNBOUNDED)
        self._version = 0
        self._generating: set[Event] = set()
        """What cancels each `generate` in progress."""
        self.on_tokens: Callable[[int], None] = lambda tokens: None
        """Told how many tokens were decoded since it was called last, from the thread that decodes."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Generator[Rollout, None, None]:
        """See `RolloutEngine.generate`. Decoding continues in a thread while the caller handles the rollouts that have ended.

        Under `compile` it decodes in the caller's thread, to which the compiled step's CUDA graphs belong, and yields
        rollouts batch by batch.
        """
        ended: SimpleQueue[Rollout | None] = SimpleQueue()
        cancelled = Event()
        batches = self._decode_all(prompts, sampling, ended.put, cancelled)
        if self._compile:
            for _ in batches:
                while not ended.empty():
                    yield ended.get()  # pyright: ignore[reportReturnType]
            return
        self._generating.add(cancelled)
        with ThreadPoolExecutor(1, "generate") as thread:
            decoding = thread.submit(list, batches)
            decoding.add_done_callback(lambda _: ended.put(None))
            try:
                while (rollout := ended.get()) is not None:
                    yield rollout
            finally:
                cancelled.set()
                self._generating.discard(cancelled)
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

    def cancel(self) -> None:
        """End every `generate` in progress, from another thread: the next token is its last."""
        for cancelled in list(self._generating):
            cancelled.set()

    def close(self) -> None:
        """See `RolloutEngine.close`: there is nothing to release."""

    def _decode_all(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, emit: Callable[[Rollout], None], cancelled: Event
    ) -> Iterator[int]:
        """Decode batch after batch; yields the number of each when it is done."""
        started = time.perf_counter()
        order = sorted(range(len(prompts)), key=lambda p: (len(prompts[p]), p))
        rows = [(p, s) for p in order for s in range(sampling.n)]
        fit = sum(len(prompts[p]) < self._context for p, _ in rows)  # the rest, longer than the context, gets no reply
        parts = [rows[start : min(start + self._batch_size, fit)] for start in range(0, fit, self._batch_size)]
        for number, part in list(enumerate(parts))[self._number :: self._engines]:
            if cancelled.is_set():
                return
            batch = _Batch(part, sampling, self._version, emit, cancelled, started, self.on_tokens)
            with self._gpu_turn():
                self._decode([prompts[p] for p, _ in part], batch, number)
            yield number
        if self._number == 0:
            _Batch(rows[fit:], sampling, self._version, emit, cancelled, started).fail()
        yield len(parts)

    def _decode(self, prompts: list[Sequence[int]], batch: _Batch, number: int) -> None:
        sampling, longest = batch.sampling, max(map(len, prompts))
        if self._compile:
            longest = min(-(-longest // PROMPT_STEP) * PROMPT_STEP, max(longest, self._context - sampling.max_tokens))
        room = min(sampling.max_tokens, self._context - longest)
        device = self._model.device
        batch.allocate(room, device, int(np.random.SeedSequence([sampling.seed, number]).generate_state(1)[0]))
        ids = torch.full((len(prompts), longest), self._pad_id)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask = torch.arange(longest) >= torch.tensor([[longest - len(p)] for p in prompts])
        settings = GenerationConfig(
            do_sample=False,  # _Batch adds the noise that makes the largest score a sample
            max_new_tokens=room,
            eos_token_id=list(sampling.stop_ids) or None,
            pad_token_id=self._pad_id,
            cache_implementation="static" if self._compile else None,
        )
        training = self._model.training
        self._model.eval()
        try:
            with (
                torch.no_grad(),
                _current(device),
                _bare_settings(self._model),
                sdpa_kernel(ATTENTION),
            ):
                output = self._model.generate(
                    ids.to(device),
                    attention_mask=mask.long().to(device),
                    generation_config=settings,
                    logits_processor=LogitsProcessorList([_Before(batch)]),
                    stopping_criteria=StoppingCriteriaList([_After(batch)]),
                )
            batch.finish(output.shape[1] - longest)
        finally:
            self._model.train(training)


@dataclass
class _Batch:
    """State of one `generate` call: records the log-prob of every sampled token and emits rows as they end."""

    rows: list[tuple[int, int]]
    """(prompt, sample) of each row."""
    sampling: Sampling
    version: int
    emit: Callable[[Rollout], None]
    cancelled: Event
    started: float
    """When the call began, by the performance counter."""
    on_tokens: Callable[[int], None] = lambda tokens: None
    steps: int = 0
    """Tokens sampled so far."""
    handed_out: set[int] = field(default_factory=set)
    scaled: Tensor = field(init=False)
    """float32 [B, V]: the logits of the step that is being sampled, over the temperature."""
    tokens: Tensor = field(init=False)
    """int64 [T, B]"""
    logprobs: Tensor = field(init=False)
    """float32 [T, B]"""
    stop_ids: Tensor = field(init=False)
    generator: torch.Generator = field(init=False)
    cuts: list[Any] = field(init=False)

    def allocate(self, room: int, device: torch.device, seed: int) -> None:
        shape = (room + 1, len(self.rows))  # some releases of transformers decode one step too many
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=device)
        self.logprobs = torch.zeros(shape, device=device)
        self.stop_ids = torch.tensor(self.sampling.stop_ids, dtype=torch.int64, device=device)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.cuts = _cuts(self.sampling)

    def before(self, ids: Any, logits: Tensor) -> Tensor:
        """Scores of which the largest is a sample of the softmax over the temperature, by the Gumbel trick."""
        self.scaled = logits / (self.sampling.temperature or 1.0)
        if self.sampling.temperature == 0:
            return self.scaled
        scores = self.scaled
        for cut in self.cuts:
            scores = cut(ids, scores)
        noise = torch.empty_like(scores).exponential_(generator=self.generator)
        return scores - noise.clamp_(min=torch.finfo(noise.dtype).tiny).log_()

    def after(self, sampled: Tensor) -> bool:
        self.tokens[self.steps] = sampled
        self.logprobs[self.steps] = token_logprobs(self.scaled, sampled, temperature=1.0)[0]
        self.steps += 1
        if self.steps % CHECK_EVERY == 0:
            self.on_tokens(CHECK_EVERY * (len(self.rows) - len(self.handed_out)))
            ended = torch.isin(self.tokens[self.steps - CHECK_EVERY : self.steps], self.stop_ids).any(dim=0)
            self.hand_out(ended.nonzero()[:, 0].tolist())
        return self.cancelled.is_set()

    def finish(self, length: int) -> None:
        self.steps = min(self.steps, length)
        if not self.cancelled.is_set():
            self.hand_out(list(range(len(self.rows))))

    def hand_out(self, rows: list[int]) -> None:
        """Emit those of `rows` that were not emitted before."""
        rows = [row for row in rows if row not in self.handed_out]
        if not rows:
            return
        tokens = self.tokens[: self.steps, rows].T.tolist()
        logprobs = self.logprobs[: self.steps, rows].T.tolist()
        exact = self.sampling.whole
        for row, ids, values in zip(rows, tokens, logprobs, strict=True):
            length = next((n for n, token in enumerate(ids, start=1) if token in self.sampling.stop_ids), None)
            finish = "stop" if length else "length"
            self.handed_out.add(row)
            self.end(row, ids[:length], values[:length] if exact else None, finish)

    def fail(self) -> None:
        for row in range(len(self.rows)):
            self.end(row, [], None, "error")

    def end(self, row: int, ids: list[int], logprobs: list[float] | None, finish: Finish) -> None:
        prompt, sample = self.rows[row]
        ended_s = time.perf_counter() - self.started
        self.emit(Rollout(prompt, sample, ids, logprobs, finish, self.version, ended_s))


def _cuts(sampling: Sampling) -> list[Any]:
    """What leaves tokens out, in transformers' order."""
    cuts: list[Any] = []
    if sampling.top_k:
        cuts.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        cuts.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p:
        cuts.append(MinPLogitsWarper(sampling.min_p))
    return cuts


class _Before(LogitsProcessor):
    def __init__(self, batch: _Batch):
        self.batch = batch

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return self.batch.before(input_ids, scores)


class _After(StoppingCriteria):
    def __init__(self, batch: _Batch):
        self.batch = batch

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        stop = self.batch.after(input_ids[:, -1])
        return torch.full((input_ids.shape[0],), stop, dtype=torch.bool, device=input_ids.device)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Make `device` current: a new thread starts on GPU 0, and kernels are launched on the current GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _bare_settings(model: Any) -> Iterator[None]:
    """Without the model's own generation settings, such as a repetition penalty, from which `generate` fills gaps."""
    models = [model, model.get_base_model()] if hasattr(model, "peft_config") else [model]
    own = [m.generation_config for m in models]
    for m in models:
        m.generation_config = GenerationConfig()
    try:
        yield
    finally:
        for m, settings in zip(models, own, strict=True):
            m.generation_config = settings
