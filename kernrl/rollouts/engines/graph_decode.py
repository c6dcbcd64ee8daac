"""Decoding with a step that is captured once as a CUDA graph and then replayed: the host does almost nothing for a token.

A step reads its token and its column from device memory, and writes the next token, its log-prob and the column there, so
that all replays are alike. On a CPU the same steps run one by one, and rows that have ended take no part in them.
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from kernrl.kernels import token_logprobs
from kernrl.policy.attention import VARLEN, decode_kwargs
from kernrl.policy.decode_attention import NO_COLUMN, KVCache
from kernrl.rollouts.engines.decoding_batch import CHECK_EVERY, DecodingBatch
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.step_graphs import StepGraphs
from kernrl.rollouts.engines.token_choice import scores_to_maximise

GROWTH = 512
"""Columns that the cache grows by; each time, the step is captured again."""

KEPT_BYTES = 4 * 2**30
"""A larger cache is released when a call ends, as training needs the memory; the next call captures its step again."""

PROBE_TOLERANCE = 0.05
"""Relative error of logits in `can_decode`: nano has 1e-6 in float32, and 0.18 if padding is seen, 0.29 at a wrong position."""


class GraphDecoder:
    """Decodes one batch at a time with a model; `can_decode` says whether it can.

    Args:
        model: in evaluation mode while it is used. Its weights may change between batches.
    """

    def __init__(self, model: Any):
        self._model, self._device = model, model.device
        self._generator = torch.Generator(self._device)
        self._graphs = StepGraphs(self._generator)
        self._addresses: tuple[int, ...] = ()
        self._rows: _Rows | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the cache."""
        return self._rows.kv.nbytes if self._rows else 0

    def decode(
        self, ids: Tensor, mask: Tensor, prompt_of: Tensor, batch: DecodingBatch, *, rows: int, room: int, seed: int
    ) -> None:
        """Decode up to `room` tokens a row of `batch`, whose random stream depends on `seed` and `rows` alone.

        Args:
            ids, mask: int64 [P, T], the distinct prompts, padded on the left.
            prompt_of: int64 [n], the prompt of each of the batch's rows.
            rows: n or more: the step's rows; batches of equal `rows` share a graph.
        """
        state = self._begin(ids, mask, prompt_of, batch.sampling, rows, seed)
        for steps in range(1, room + 1):
            if batch.cancelled.is_set():
                return
            if steps % CHECK_EVERY == 0:
                ended = batch.check(*state.sampled(steps, len(prompt_of)))
                if batch.ended:
                    return
                if ended:
                    state.leave_out(ended, len(prompt_of))
            if steps < room:
                self._advance(state, batch.sampling)
        batch.finish(*state.sampled(room, len(prompt_of)))

    def release(self) -> None:
        """Free the cache and the graphs."""
        self._graphs.forget()
        self._rows = None

    def _begin(
        self, ids: Tensor, mask: Tensor, prompt_of: Tensor, sampling: Sampling, rows: int, seed: int
    ) -> _Rows:  # fmt: skip
        """Read the prompts, and sample the first token of every row."""
        (_, longest), n = ids.shape, len(prompt_of)
        state = self._reserve(rows, longest + 1)
        addresses = tuple(x.data_ptr() for x in chain(self._model.parameters(), self._model.buffers()))
        if addresses != self._addresses:  # a graph reads the weights where they were when it was captured
            self._graphs.forget()
            self._addresses = addresses
        padding = (longest - mask.sum(dim=1))[prompt_of]
        state.live = None
        state.padding.zero_()[:n] = padding
        state.kv.starts.fill_(NO_COLUMN)[:n] = padding
        state.kv.position.fill_(longest - 1)
        state.first = state.column = longest
        self._generator.manual_seed(seed)
        logits = read_prompts(self._model, state.kv, ids, mask, prompt_of)
        prompt_of_all = prompt_of.new_zeros(rows)  # rows that are not the batch's go on from some prompt
        prompt_of_all[:n] = prompt_of
        self._sample(state, logits[prompt_of_all], sampling)
        return state

    def _advance(self, state: _Rows, sampling: Sampling) -> None:
        """Decode one more token a row."""
        if state.column + 1 == state.kv.capacity:
            self._grow(state, state.kv.capacity + GROWTH)
        kind = sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p
        self._graphs.run(kind, partial(self._step, state, sampling))
        state.column += 1

    def _step(self, state: _Rows, sampling: Sampling) -> None:
        logits = decode_tokens(self._model, state.kv, state.ids[: state.stepped], state.padding[: state.stepped])
        self._sample(state, logits, sampling)

    def _sample(self, state: _Rows, logits: Tensor, sampling: Sampling) -> None:
        """Sample from logits [B, V], and write what was sampled where the next step and the host find it."""
        scaled = logits.float() / (sampling.temperature or 1.0)
        live = None if state.live is None else (state.live, state.kv.rows)
        sampled = scores_to_maximise(scaled, sampling, self._generator, live).argmax(dim=-1)
        logprobs, _ = token_logprobs(scaled, sampled, temperature=1.0)
        state.kv.position += 1
        state.keep_sampled(sampled, logprobs)

    def _reserve(self, rows: int, columns: int) -> _Rows:
        """Make room for `rows` and `columns`; graphs are kept where nothing moves."""
        capacity = (columns // GROWTH + 1) * GROWTH
        if self._rows is None or self._rows.kv.rows != rows:
            self.release()
            self._rows = _Rows(rows, capacity, self._device)
        elif capacity > self._rows.kv.capacity:
            self._grow(self._rows, capacity)
        return self._rows

    def _grow(self, state: _Rows, capacity: int) -> None:
        self._graphs.forget()
        state.grow(capacity)


class _Rows:
    """What steps read and write, at addresses that stay until the cache grows."""

    def __init__(self, rows: int, capacity: int, device: torch.device):
        self.kv = KVCache(rows, capacity, device)
        self.tokens = torch.zeros(capacity, rows, dtype=torch.int64, device=device)
        """int64 [capacity, B]: what was sampled for each column."""
        self.logprobs = torch.zeros(capacity, rows, device=device)
        """float32 [capacity, B]"""
        self.ids = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        """int64 [B, 1]: the tokens sampled last, in column `column`."""
        self.padding = torch.zeros(rows, dtype=torch.int64, device=device)
        """int64 [B]: columns before a row's first token."""
        self.live: Tensor | None = None
        """int64 [b]: the rows of the batch that are decoded, as the first b of `kv`, `ids` and `padding`; None: all of them."""
        self.first = self.column = 0
        """Columns of the first and the last sampled tokens; `kv.position` is `column` on the GPU, which may lag behind."""

    @property
    def stepped(self) -> int:
        """Rows that a step decodes."""
        return self.kv.rows if self.live is None else len(self.live)

    def keep_sampled(self, tokens: Tensor, logprobs: Tensor) -> None:
        """Write what was sampled for column `kv.position`, [b], where the next step and the host find it."""
        for kept, new in ((self.tokens, tokens), (self.logprobs, logprobs)):
            if self.live is None:
                kept.index_copy_(0, self.kv.position, new[None])
            else:
                kept[self.kv.position, self.live] = new
        self.ids[: len(tokens)] = tokens[:, None]

    def leave_out(self, ended: list[int], n: int) -> None:
        """Of the batch's n rows, some have ended: what they would sample from here on would be thrown away."""
        if self.kv.starts.is_cuda:  # a graph decodes as many rows as ever
            self.kv.starts[ended] = NO_COLUMN
            return
        live = torch.arange(n) if self.live is None else self.live
        places = torch.isin(live, torch.tensor(ended), invert=True).nonzero()[:, 0]
        self.live = live[places]
        self.kv.keep(places, self.column)
        for kept in (self.ids, self.padding):
            kept[: len(places)] = kept[places]

    def sampled(self, steps: int, n: int) -> tuple[Tensor, Tensor]:
        """Tokens and log-probs, [steps, n], of the first n rows."""
        columns = slice(self.first, self.first + steps)
        return self.tokens[columns, :n], self.logprobs[columns, :n]

    def grow(self, capacity: int) -> None:
        more = capacity - self.kv.capacity
        self.kv.grow(capacity)
        self.tokens = torch.cat([self.tokens, self.tokens.new_zeros(more, self.kv.rows)])
        self.logprobs = torch.cat([self.logprobs, self.logprobs.new_zeros(more, self.kv.rows)])


def read_prompts(model: Any, kv: KVCache, ids: Tensor, mask: Tensor, prompt_of: Tensor) -> Tensor:
    """Forward prompts, int64 [P, T] padded on the left; row r keeps the keys of prompt `prompt_of[r]`. Returns logits [P, V]
    of the tokens that follow."""
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    kv.read(prompt_of)
    try:
        return model(input_ids=ids, logits_to_keep=1, **decode_kwargs(positions, kv, mask)).logits[:, -1]
    finally:
        kv.read(None)


def decode_tokens(model: Any, kv: KVCache, ids: Tensor, padding: Tensor) -> Tensor:
    """Forward one token a row, int64 [B, 1] at column `kv.position`; `padding` [B] tokens precede each row. Returns [B, V]."""
    return model(input_ids=ids, **decode_kwargs((kv.position - padding)[:, None], kv)).logits[:, -1]


@torch.no_grad()
def can_decode(model: Any) -> bool:
    """Whether `GraphDecoder` decodes with this model: whether a token read by itself has the logits it has after its prompt.

    Models whose layers attend in another way, or that wait for the GPU in a forward, are decoded by transformers.
    """
    config = model.config
    waits = any(kind in str(getattr(config, "rope_parameters", None)) for kind in ("dynamic", "longrope"))
    if config._attn_implementation != VARLEN or waits or not getattr(model, "_can_compile_fullgraph", False):
        return False
    texts = torch.tensor([[1, 2, 3, 4, 5, 6], [0, 0, 7, 6, 5, 1]], device=model.device)
    mask = (texts > 0).long()
    kv = KVCache(2, 16, model.device)
    padding = texts.shape[1] - mask.sum(dim=1)
    kv.starts.copy_(padding)
    kv.position.fill_(texts.shape[1] - 1)
    try:
        read_prompts(model, kv, texts[:, :-1], mask[:, :-1], torch.arange(2, device=model.device))
        found = decode_tokens(model, kv, texts[:, -1:], padding).float()
    except Exception:  # models differ in what they take, and each says so in its own way
        return False
    whole = [model(input_ids=row[row > 0][None]).logits[0, -1].float() for row in texts]
    wanted = torch.stack(whole)
    return bool((found - wanted).norm() < PROBE_TOLERANCE * wanted.norm())
