"""The policy that a training stage starts from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from kernrl.config import ImproveConfig, SftConfig
from kernrl.policy.load import Policy, add_lora, check_targets, load_config, load_policy, load_tokenizer, recompute_activations
from kernrl.policy.memory_plan import check_training_memory
from kernrl.policy.ranks import Ranks

TrainingStage = SftConfig | ImproveConfig


def load_starting_policy(
    config: TrainingStage, checkpoint: Path | None, row_tokens: int, ranks: Ranks, *, compiled: bool = False
) -> Policy:
    """The model at step 0 or as the checkpoint left it, with its LoRA adapters.

    Args:
        row_tokens: tokens of a packed row of its training.
        compiled: whether its layers will be compiled where there is a GPU.

    Raises:
        UsageError: it cannot be loaded, or there is not enough memory to train it.
    """
    source, revision = _source(config, checkpoint)
    model = load_config(source, revision=revision)
    if config.lora:
        check_targets(model, config.lora_targets)
    check_memory(config, model, row_tokens, ranks, compiled=compiled)
    dtype = "bf16" if _in_bf16(config) else "fp32"
    policy = load_policy(source, dtype=dtype, revision=revision, four_bit=config.load_in_4bit)
    if config.lora:
        adapted = add_lora(
            policy.model,
            rank=config.lora_rank,
            alpha=config.lora_alpha or 2 * config.lora_rank,
            dropout=config.lora_dropout,
            targets=config.lora_targets,
            checkpoint=checkpoint,
        )
        policy = replace(policy, model=adapted)
    if config.gradient_checkpointing:
        recompute_activations(policy.model)
    return policy


def load_starting_tokenizer(
    config: TrainingStage, checkpoint: Path | None, row_tokens: int, ranks: Ranks, *, compiled: bool
) -> PreTrainedTokenizerBase:
    """The model's tokenizer alone, before data is prepared: a model that its configuration rules out is refused here.

    Arguments and errors are those of `load_starting_policy`.
    """
    source, revision = _source(config, checkpoint)
    model = load_config(source, revision=revision)
    if config.lora:
        check_targets(model, config.lora_targets)
    check_memory(config, model, row_tokens, ranks, compiled=compiled)
    return load_tokenizer(source, revision=revision)


def check_memory(config: TrainingStage, model: PretrainedConfig, row_tokens: int, ranks: Ranks, *, compiled: bool) -> None:
    """Refuse a run of this model that needs more memory than there is (UsageError)."""
    check_training_memory(
        model,
        row_tokens=row_tokens,
        weight_bytes=2 if _in_bf16(config) else 4,
        lora_rank=config.lora_rank if config.lora else 0,
        gradient_checkpointing=config.gradient_checkpointing,
        shards=ranks.size if ranks.sharded else 1,
        compiled=compiled,
        four_bit=config.load_in_4bit,
    )


def _source(config: TrainingStage, checkpoint: Path | None) -> tuple[str, str | None]:
    """Where the base weights are, and which revision of them."""
    return (str(checkpoint), None) if checkpoint and not config.lora else (config.model, config.revision)


def _in_bf16(config: TrainingStage) -> bool:
    """Whether weights are held in bf16: frozen ones, on a GPU. Weights that are trained are held in float32."""
    return config.lora and torch.cuda.is_available()
