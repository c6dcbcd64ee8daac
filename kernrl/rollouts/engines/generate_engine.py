"""The embedded engine: samples with the policy itself, in this process, and yields each rollout as soon as it ends."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernrl.policy.fused_norm import fuse_norms
from kernrl.policy.load import Policy
from kernrl.rollouts.engines.decoding_batch import DecodingBatch
from kernrl.rollouts.engines.engine import NamedTensors, Rollout, Sampling
from kernrl.rollouts.engines.graph_decode import KEPT_BYTES, GraphDecoder, can_decode
from kernrl.rollouts.engines.library_decode import library_decode

ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Without cuDNN's: it plans anew for every length, so for every token of a decode by transformers."""

UNBOUNDED = 2**31
"""Context, in tokens, of a model whose config has none."""

ROW_STEP = 32
"""On a GPU a step's rows are a multiple of this, so that calls of about the same size share a graph."""


class GenerateEngine:
    """Samples by `graph_decode`, and by transformers' `generate` with models that it cannot decode.

    Prompts are repeated n times, sorted by length so that there is little padding, and decoded `batch_size` rows at a time.
    A batch has a random stream of its own, a function of the seed, the batch's number and its rows alone (see `token_choice`).

    Args:
        policy: what to sample from.
        batch_size: rows decoded at once.
        dtype: sample from a copy of the weights in this dtype, refreshed by `sync`; None samples from the policy's own
            weights, which need no sync.
        graphs: False decodes by transformers' `generate` alone, and computes all as transformers does.
        deal: (rank, world): this engine decodes batches rank, rank + world, …; others with the same weights decode the rest.
        gpu_turn: context entered while a batch is decoded, such as `HardenedVerifier.untimed` of this GPU.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        batch_size: int = 256,
        dtype: torch.dtype | None = None,
        graphs: bool = True,
        deal: tuple[int, int] = (0, 1),
        gpu_turn: Callable[[], AbstractContextManager[None]] = nullcontext,
    ):
        self._trained: Any = policy.model
        self._model: Any = self._trained
        if dtype is not None and dtype != policy.head_weight.dtype:
            self._model = copy.deepcopy(self._trained).requires_grad_(False)
            for parameter in self._model.parameters():  # not `.to(dtype)`, which would round the rotary frequencies too
                parameter.data = parameter.data.to(dtype)
            if graphs:
                fuse_norms(self._model)
        self._batch_size, self._graphs, self._gpu_turn = batch_size, graphs, gpu_turn
        self._number, self._engines = deal
        self._pad_id: Any = policy.tokenizer.pad_token_id
        self._context: int = getattr(policy.model.config, "max_position_embeddings", UNBOUNDED)
        self._version = 0
        self._decoder: GraphDecoder | None = None
        self._one_batch = Lock()
        """Held while a batch is decoded: the decoder has the buffers of one."""
        self._generating: set[Event] = set()
        """What cancels each `generate` in progress."""
        self.on_tokens: Callable[[int], None] = lambda tokens: None
        """Told how many tokens were decoded since it was called last, from the thread that decodes."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Generator[Rollout, None, None]:
        """See `RolloutEngine.generate`. Decoding goes on in a thread while the caller handles the rollouts that have ended."""
        ended: SimpleQueue[Rollout | None] = SimpleQueue()
        cancelled = Event()
        self._generating.add(cancelled)
        with ThreadPoolExecutor(1, "generate") as thread:
            decoding = thread.submit(self._decode_all, prompts, sampling, ended.put, cancelled)
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
        """See `RolloutEngine.close`."""
        self._release(kept=0)

    def _decode_all(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, emit: Callable[[Rollout], None], cancelled: Event
    ) -> None:
        """Decode batch after batch."""
        started = time.perf_counter()
        order = sorted(range(len(prompts)), key=lambda p: (len(prompts[p]), p))
        rows = [(p, s) for p in order for s in range(sampling.n)]
        fit = sum(len(prompts[p]) < self._context for p, _ in rows)  # the rest, longer than the context, gets no reply
        parts = [rows[start : min(start + self._batch_size, fit)] for start in range(0, fit, self._batch_size)]
        most = min(self._batch_size, -(-fit // ROW_STEP) * ROW_STEP)
        try:
            for number, part in list(enumerate(parts))[self._number :: self._engines]:
                batch = DecodingBatch(part, sampling, self._version, emit, cancelled, started, self.on_tokens)
                with self._gpu_turn(), self._one_batch, self._ready_to_sample():
                    if cancelled.is_set():
                        return
                    self._decode(prompts, batch, number, most)
        finally:
            self._release(kept=KEPT_BYTES)
        if self._number == 0:
            DecodingBatch(rows[fit:], sampling, self._version, emit, cancelled, started).fail()

    def _decode(self, prompts: Sequence[Sequence[int]], batch: DecodingBatch, number: int, most: int) -> None:
        """Decode one batch; `most` is the most rows that a batch of this call has, rounded up."""
        if self._graphs and self._decoder is None:
            self._graphs = can_decode(self._model)
            self._decoder = GraphDecoder(self._model) if self._graphs else None
        sampling, device = batch.sampling, self._model.device
        distinct = {p: index for index, p in enumerate(dict.fromkeys(p for p, _ in batch.rows))}
        ids, mask = left_padded([prompts[p] for p in distinct], self._pad_id)
        ids, mask = ids.to(device), mask.to(device)
        prompt_of = torch.tensor([distinct[p] for p, _ in batch.rows], device=device)
        room = min(sampling.max_tokens, self._context - ids.shape[1])
        seed = int(np.random.SeedSequence([sampling.seed, number]).generate_state(1)[0])
        if self._decoder:
            rows = most if device.type == "cuda" else len(batch.rows)
            self._decoder.decode(ids, mask, prompt_of, batch, rows=rows, room=room, seed=seed)
        else:
            library_decode(self._model, ids[prompt_of], mask[prompt_of], batch, room, self._pad_id, seed)

    @contextmanager
    def _ready_to_sample(self) -> Generator[None, None, None]:
        training, device = self._model.training, self._model.device
        self._model.eval()
        # a new thread starts on GPU 0, and kernels are launched on the current GPU
        current = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
        try:
            with torch.no_grad(), current, sdpa_kernel(ATTENTION):
                yield
        finally:
            self._model.train(training)

    def _release(self, kept: int) -> None:
        """Free the decoder's memory where it is more than `kept` bytes."""
        with self._one_batch:
            if self._decoder and self._decoder.nbytes > kept:
                self._decoder.release()


def left_padded(texts: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Token ids and their mask, int64 [P, T], of texts padded on the left to the longest."""
    longest = max(map(len, texts))
    ids = torch.full((len(texts), longest), pad_id)
    mask = torch.zeros(len(texts), longest, dtype=torch.int64)
    for row, text in enumerate(texts):
        ids[row, longest - len(text) :] = torch.tensor(text)
        mask[row, longest - len(text) :] = 1
    return ids, mask
