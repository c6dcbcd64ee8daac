"""The policy that a training stage starts from."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from kernrl.config import ImproveConfig, SftConfig
from kernrl.policy.load import Policy, add_lora, load_config, load_policy, load_tokenizer
from kernrl.policy.memory_plan import foretell_memory
from kernrl.policy.ranks import Ranks

TrainingStage = SftConfig | ImproveConfig


def read_policy(
    config: TrainingStage, checkpoint: Path | None, row_tokens: int, ranks: Ranks, *, compiled: bool = False
) -> Policy:
    """The model at step 0, or as the checkpoint left it, with its adapters.

    Args:
        row_tokens: of the rows that it will be trained on.
        compiled: whether its layers will be compiled where there is a GPU.

    Raises:
        UsageError: it cannot be loaded, or this machine cannot hold its training.
    """
    source, revision = _source(config, checkpoint)
    foretell(config, load_config(source, revision=revision), row_tokens, ranks, compiled=compiled)
    policy = load_policy(source, dtype="bf16" if _in_bf16(config) else "fp32", revision=revision)
    if config.lora:
        adapted = add_lora(policy.model, rank=config.lora_rank, alpha=2 * config.lora_rank, checkpoint=checkpoint)
        policy = Policy(adapted, policy.tokenizer)
    if config.gradient_checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    return policy


def check_policy(
    config: TrainingStage, checkpoint: Path | None, row_tokens: int, ranks: Ranks, *, compiled: bool
) -> PreTrainedTokenizerBase:
    """The model's tokenizer, before data is made for it: what configuration and tokenizer are enough to refuse is refused.

    Raises:
        UsageError: as of `read_policy`, whose arguments these are.
    """
    source, revision = _source(config, checkpoint)
    foretell(config, load_config(source, revision=revision), row_tokens, ranks, compiled=compiled)
    return load_tokenizer(source, revision=revision)


def foretell(config: TrainingStage, model: PretrainedConfig, row_tokens: int, ranks: Ranks, *, compiled: bool) -> None:
    """Refuse a run of this model that needs more memory than there is (UsageError)."""
    foretell_memory(
        model,
        row_tokens=row_tokens,
        weight_bytes=2 if _in_bf16(config) else 4,
        lora_rank=config.lora_rank if config.lora else 0,
        gradient_checkpointing=config.gradient_checkpointing,
        shards=ranks.size if ranks.sharded else 1,
        compiled=compiled,
    )


def _source(config: TrainingStage, checkpoint: Path | None) -> tuple[str, str | None]:
    """Where the weights are, adapters apart, and which revision of them."""
    return (str(checkpoint), None) if checkpoint and not config.lora else (config.model, config.revision)


def _in_bf16(config: TrainingStage) -> bool:
    """Frozen weights are held in bf16 where there is a GPU; those that are trained in float32."""
    return config.lora and torch.cuda.is_available()
