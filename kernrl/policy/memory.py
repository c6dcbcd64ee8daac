"""What a training step will need in memory, from the model's configuration alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from kernrl.errors import UsageError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes a training step needs on one device."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.activations_bytes


def count_parameters(config: PretrainedConfig) -> int:
    """Parameters of the causal model this configuration describes, without allocating them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())


def estimate_training(
    config: PretrainedConfig,
    *,
    parameters: int,
    row_tokens: int,
    weight_bytes: int,
    lora_rank: int = 0,
    gradient_checkpointing: bool = False,
    shards: int = 1,
) -> MemoryEstimate:
    """Estimate one training step with AdamW, packed attention and the fused head.

    Activations follow Korthikanti et al. 2022 (Reducing Activation Recomputation in Large Transformer Models) without the
    attention matrix, which is never formed: about 34 bytes a token for every unit of hidden width and layer at a ratio of
    4 between the feed-forward and the hidden width, here split into its attention and feed-forward parts. With
    checkpointing only each layer's input stays, and one layer is held whole.

    Args:
        shards: devices that weights, gradients and optimizer are spread over (FSDP2).
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    feed_forward = getattr(config, "intermediate_size", None) or 4 * hidden
    trainable = parameters
    if lora_rank:
        trainable = layers * lora_rank * (8 * hidden + 3 * (hidden + feed_forward))
    whole_layer = row_tokens * (18 * hidden + 8 * feed_forward)
    kept = layers * row_tokens * 2 * hidden + whole_layer if gradient_checkpointing else layers * whole_layer
    head = min(row_tokens, 4096) * config.vocab_size * 2 + row_tokens * hidden * 4
    return MemoryEstimate(
        weights_bytes=(parameters * weight_bytes + (trainable * 4 if lora_rank else 0)) // shards,
        gradients_bytes=trainable * (4 if lora_rank else weight_bytes) // shards,
        optimizer_bytes=trainable * 8 // shards,
        activations_bytes=kept + head,
    )


def require_memory(estimate: MemoryEstimate, free_bytes: int, *, lora: bool, gradient_checkpointing: bool) -> None:
    """Raise UsageError, saying what to change, when an estimate exceeds the free memory."""
    if estimate.total_bytes <= free_bytes:
        return
    remedies = ["a smaller --row-tokens"]
    if not gradient_checkpointing and estimate.activations_bytes > estimate.total_bytes // 4:
        remedies.insert(0, "--gradient-checkpointing")
    if not lora:
        remedies.append("--lora")
    raise UsageError(
        f"This run needs about {estimate.total_bytes / GIB:.1f} GiB (weights {estimate.weights_bytes / GIB:.1f}, gradients "
        f"{estimate.gradients_bytes / GIB:.1f}, optimizer {estimate.optimizer_bytes / GIB:.1f}, activations "
        f"{estimate.activations_bytes / GIB:.1f}) but {free_bytes / GIB:.1f} GiB are free: use {' or '.join(remedies)}."
    )
