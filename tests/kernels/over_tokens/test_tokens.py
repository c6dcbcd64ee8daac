"""What is kept of a call's options for the next: all but its tensors."""

from dataclasses import fields

import pytest
import torch

from kernrl.errors import UsageError
from kernrl.kernels.over_tokens.tokens import Batch, read_again, read_options

B, T = 3, 4
TENSORS = [field.name for field in fields(Batch) if field.name != "plan"]


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def full() -> dict:
    """Every tensor that an option can be, new ones at each call."""
    return {
        "advantages": draw(B), "mask": draw(B, T) > 0, "old_logprobs": draw(B, T), "ref_logprobs": draw(B, T),
        "rollout_logprobs": draw(B, T),
    }  # fmt: skip


def packed() -> dict:
    flat = {name: x.reshape(-1) for name, x in full().items()}
    return {**flat, "cu_seqlens": torch.tensor([0, 4, 8, 12])}


CASES = {
    "nothing": lambda: {"advantages": draw(B, T)},
    "every tensor": lambda: {**full(), "beta": 0.1, "delta": 1.5},
    "a correction": lambda: {**full(), "correction": "token_mask", "correction_min": 0.5},
    "a sequence's": lambda: {**full(), "correction": "sequence_truncate", "aggregation": "sequence_mean"},
    "a number of tokens": lambda: {**full(), "num_tokens": 100.0},
    "another": lambda: {**full(), "num_tokens": 200.0},
    "on the device": lambda: {**full(), "num_tokens": torch.tensor(100.0)},
    "unused": lambda: {**full(), "num_tokens": torch.tensor(100.0), "aggregation": "sum"},
    "packed": packed,
    "packed, gspo": lambda: {**packed(), "loss_type": "gspo"},
    "fixed length": lambda: {**full(), "loss_type": "dr_grpo", "max_tokens": 9, "num_sequences": 5},
    "bfloat16": lambda: {**full(), "old_logprobs": draw(B, T).bfloat16()},
    "one a token": lambda: {**full(), "advantages": draw(B, T)},
}


def test_a_kept_plan_takes_what_each_call_gives():
    """Calls take turns: each gets its own tensors, and what `read_options` makes of its own options."""
    plans = {}
    for _ in range(3):
        for name, make in CASES.items():
            options = make()
            shape = torch.Size((B * T,) if "cu_seqlens" in options else (B, T))
            batch, config = read_again(("here",), shape, 1.0, options)
            wanted, wanted_config = read_options(shape, 1.0, options)
            assert all(getattr(batch, tensor) is getattr(wanted, tensor) for tensor in TENSORS), name
            assert batch.plan == wanted.plan, name
            assert config is wanted_config, name
            assert plans.setdefault(name, batch.plan) is batch.plan, name
    assert len({id(plan) for plan in plans.values()}) == len(CASES)


def test_callers_keep_apart():
    options, shape = full(), torch.Size((B, T))
    plans = [read_again((own,), shape, temperature, options)[0].plan for own in (1, 2) for temperature in (0.5, 1.0)]
    assert len({id(plan) for plan in plans}) == 4


def test_strided_tensors_are_copied_at_every_call():
    shape, strided = torch.Size((B, T)), draw(T, B).t()
    for options in (full(), {**full(), "old_logprobs": strided}, {**full(), "old_logprobs": strided}):
        batch, _ = read_again(("strided",), shape, 1.0, options)
        assert batch.old_logprobs is not None
        assert batch.old_logprobs.is_contiguous()
        assert torch.equal(batch.old_logprobs, options["old_logprobs"])


@pytest.mark.parametrize(
    "wrong",
    [{"mask": torch.ones(T, B)}, {"advantages": torch.ones(T)}, {"delta": 1.1}, {"loss_type": "ppo"}, {"ref_logprobs": None}],
)
def test_what_is_wrong_is_refused_after_calls_that_were_right(wrong):
    options = {**full(), "beta": 0.1, "delta": None, "loss_type": "grpo"}
    for _ in range(2):
        read_again(("wrong",), torch.Size((B, T)), 1.0, options)
        with pytest.raises(UsageError):
            read_again(("wrong",), torch.Size((B, T)), 1.0, {**options, **wrong})
