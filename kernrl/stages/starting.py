"""The policy that a training stage starts from."""

from __future__ import annotations

from pathlib import Path

import torch

from kernrl.config import ImproveConfig, SftConfig
from kernrl.policy.load import Policy, add_lora, load_policy
from kernrl.policy.memory import foretell_memory
from kernrl.policy.ranks import Ranks


def read_policy(
    config: SftConfig | ImproveConfig, checkpoint: Path | None, row_tokens: int, ranks: Ranks, *, compiled: bool = False
) -> Policy:
    """The model at step 0, or as the checkpoint left it, with its adapters.

    Args:
        row_tokens: of the rows that it will be trained on.
        compiled: whether its layers will be compiled.

    Raises:
        UsageError: it cannot be loaded, or this GPU cannot hold its training.
    """
    dtype = "bf16" if config.lora and torch.cuda.is_available() else "fp32"
    source = str(checkpoint) if checkpoint and not config.lora else config.model
    foretell_memory(
        source,
        row_tokens=row_tokens,
        weight_bytes=2 if dtype == "bf16" else 4,
        lora_rank=config.lora_rank if config.lora else 0,
        gradient_checkpointing=config.gradient_checkpointing,
        shards=ranks.size if ranks.sharded else 1,
        compiled=compiled,
    )
    policy = load_policy(source, dtype=dtype, revision=config.revision if source == config.model else None)
    if config.lora:
        adapted = add_lora(policy.model, rank=config.lora_rank, alpha=2 * config.lora_rank, checkpoint=checkpoint)
        policy = Policy(adapted, policy.tokenizer)
    if config.gradient_checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    return policy
