"""Decoding by transformers' `generate`, for models that `graph_decode` cannot decode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from kernrl.kernels import token_logprobs
from kernrl.rollouts.engines.decoding_batch import CHECK_EVERY, DecodingBatch
from kernrl.rollouts.engines.token_choice import scores_to_maximise


def library_decode(model: Any, ids: Tensor, mask: Tensor, batch: DecodingBatch, room: int, pad_id: int, seed: int) -> None:
    """Decode up to `room` tokens a row, from a random stream that depends on `seed` and B alone.

    Args:
        ids, mask: int64 [B, T], padded on the left.
    """
    recorded = _Recorded(batch, room, ids, seed)
    settings = GenerationConfig(
        do_sample=False,  # `before` adds the noise that makes the largest score a sample
        max_new_tokens=room,
        eos_token_id=list(batch.sampling.stop_ids) or None,
        pad_token_id=pad_id,
    )
    with _bare_settings(model):
        output = model.generate(
            ids,
            attention_mask=mask,
            generation_config=settings,
            logits_processor=LogitsProcessorList([_Before(recorded)]),
            stopping_criteria=StoppingCriteriaList([_After(recorded)]),
        )
    recorded.steps = min(recorded.steps, output.shape[1] - ids.shape[1])
    batch.finish(*recorded.so_far())


class _Recorded:
    """Every sampled token with its log-prob."""

    def __init__(self, batch: DecodingBatch, room: int, ids: Tensor, seed: int):
        shape = (room + 1, ids.shape[0])  # some releases of transformers decode one step too many
        self.batch, self.steps = batch, 0
        self.generator = torch.Generator(ids.device).manual_seed(seed)
        self.tokens = torch.zeros(shape, dtype=torch.int64, device=ids.device)
        self.logprobs = torch.zeros(shape, device=ids.device)

    def so_far(self) -> tuple[Tensor, Tensor]:
        return self.tokens[: self.steps], self.logprobs[: self.steps]

    def before(self, logits: Tensor) -> Tensor:
        self.scaled = logits / (self.batch.sampling.temperature or 1.0)
        return scores_to_maximise(self.scaled, self.batch.sampling, self.generator)

    def after(self, sampled: Tensor) -> bool:
        self.tokens[self.steps] = sampled
        self.logprobs[self.steps] = token_logprobs(self.scaled, sampled, temperature=1.0)[0]
        self.steps += 1
        if self.steps % CHECK_EVERY == 0:
            self.batch.check(*self.so_far())
        return self.batch.cancelled.is_set()


class _Before(LogitsProcessor):
    def __init__(self, recorded: _Recorded):
        self.recorded = recorded

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return self.recorded.before(scores)


class _After(StoppingCriteria):
    def __init__(self, recorded: _Recorded):
        self.recorded = recorded

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        stop = self.recorded.after(input_ids[:, -1])
        return torch.full((input_ids.shape[0],), stop, dtype=torch.bool, device=input_ids.device)


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
