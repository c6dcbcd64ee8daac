"""Estimate of a training step's memory, from the model's configuration alone."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from kernrl.errors import UsageError
from kernrl.policy.four_bit import BYTES as FOUR_BIT_BYTES

GIB = 2**30

CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""File with a container's own memory limit (cgroup v2), in bytes."""

CPU_LOGIT_BYTES = 22
"""Bytes a logit takes on a CPU, where all of a row's are in memory: five and a half float32 copies, measured."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes a training step needs on one device."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    layer_bytes: int = 0
    """Activations of one layer, which are still in memory while the last gradients are computed."""
    gathered_bytes: int = 0
    """Sharded weights and their gradients that are whole at one time, or weights in 4 bits that are in bf16."""

    @property
    def total_bytes(self) -> int:
        """The peak: the backward pass frees activations while it makes gradients."""
        passing = max(self.activations_bytes, self.gradients_bytes + self.layer_bytes)
        return self.weights_bytes + self.optimizer_bytes + self.gathered_bytes + passing


def check_training_memory(
    config: PretrainedConfig,
    *,
    row_tokens: int,
    weight_bytes: int,
    lora_rank: int,
    gradient_checkpointing: bool,
    shards: int,
    compiled: bool,
    four_bit: bool = False,
) -> None:
    """Refuse, before anything is loaded, a run that needs more memory than this GPU, or this CPU's machine, has free.

    Arguments are those of `estimate_training`.

    Raises:
        UsageError: the sentence names the sizes and what to change.
    """
    on_gpu = torch.cuda.is_available()
    estimate = estimate_training(
        config,
        parameters=count_parameters(config),
        row_tokens=row_tokens,
        weight_bytes=weight_bytes,
        lora_rank=lora_rank,
        gradient_checkpointing=gradient_checkpointing,
        shards=shards,
        compiled=compiled and on_gpu,
        on_gpu=on_gpu,
        four_bit=four_bit,
    )
    free = torch.cuda.mem_get_info()[0] if on_gpu else free_ram_bytes()
    require_memory(estimate, free, lora=lora_rank > 0, gradient_checkpointing=gradient_checkpointing)


def free_ram_bytes() -> int:
    """What the system says is available, or a container's limit where that is less."""
    available = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    assert available, "every Linux since 3.14 has it"
    limit = CONTAINER_LIMIT.read_text().strip() if CONTAINER_LIMIT.exists() else "max"
    return min(1024 * int(available[1]), int(limit) if limit.isdigit() else sys.maxsize)


def count_parameters(config: PretrainedConfig) -> int:
    """Parameters of the causal model this configuration describes, without allocating them."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(p.numel() for p in model.parameters())


def count_adapters(config: PretrainedConfig, rank: int) -> int:
    """Parameters of LoRA adapters on every linear layer of the decoder: rank times what goes in and what comes out."""
    hidden, feed_forward, query, key_value = _widths(config)
    attention = (hidden + query) + 2 * (hidden + key_value) + (query + hidden)
    return config.num_hidden_layers * rank * (attention + 3 * (hidden + feed_forward))


def estimate_training(
    config: PretrainedConfig,
    *,
    parameters: int,
    row_tokens: int,
    weight_bytes: int,
    lora_rank: int = 0,
    gradient_checkpointing: bool = False,
    shards: int = 1,
    compiled: bool = False,
    on_gpu: bool = True,
    four_bit: bool = False,
) -> MemoryEstimate:
    """Estimate one training step with AdamW, packed attention and the fused head.

    State is 16 bytes a trained parameter in float32 (weight, gradient, two moments), and float32 weights that are not sharded
    have bf16 copies besides, which autocast keeps for the backward pass. With checkpointing only each layer's input stays, and
    the activations of one layer at a time (`layer_bytes`).

    Args:
        shards: devices that weights, gradients and optimizer are sharded over (FSDP2). Two layers, and the weights outside any
            layer, are whole at one time: in bf16, with their gradients in bf16 and in float32.
        compiled: whether layers are compiled, which keeps fewer intermediate results.
        on_gpu: in bf16, with the fused head; on a CPU everything is float32, and all logits of a row are in memory.
        four_bit: whether the frozen weights are in 4 bits, but for the embedding and the head. A product dequantises its own
            to bf16.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    trainable = count_adapters(config, lora_rank) if lora_rank else parameters
    autocast = on_gpu and shards == 1
    layer = row_tokens * layer_bytes(config, autocast=autocast, compiled=compiled and not lora_rank) * (1 if on_gpu else 2)
    stream = row_tokens * hidden * (4 if weight_bytes == 4 and shards == 1 else 2)
    kept = layers * stream + layer if gradient_checkpointing else layers * layer
    table = config.vocab_size * hidden
    copies = 2 if autocast and weight_bytes == 4 else 0
    if on_gpu:
        head = min(row_tokens, 4096) * config.vocab_size * 2 + row_tokens * hidden * 4
    else:
        head = row_tokens * config.vocab_size * CPU_LOGIT_BYTES
    frozen = parameters * (weight_bytes + copies)
    if four_bit:
        tables = table if config.tie_word_embeddings else 2 * table
        frozen = tables * weight_bytes + int((parameters - tables) * FOUR_BIT_BYTES)
    whole = 20 * table + 10 * max(0, parameters - 2 * table) // layers
    return MemoryEstimate(
        weights_bytes=(frozen + (trainable * 4 if lora_rank else 0)) // shards,
        gradients_bytes=trainable * (4 if lora_rank else weight_bytes) // shards,
        optimizer_bytes=trainable * 8 // shards,
        activations_bytes=kept + head,
        layer_bytes=layer,
        gathered_bytes=whole if shards > 1 else 2 * hidden * _widths(config)[1] if four_bit else 0,
    )


def layer_bytes(config: PretrainedConfig, *, autocast: bool, compiled: bool) -> int:
    """Bytes a token that one layer keeps for its backward pass, without attention's matrix, which is never formed.

    In units of the hidden and of the feed-forward width, as Korthikanti et al. 2022 count (Reducing Activation Recomputation
    in Large Transformer Models): 31 and 8 in bf16 are what autograd saves on torch's meta device. Under autocast, which
    converts more often, 38 and 8 agree with what nano and a model of 1.5B, whole and with adapters, took on an H200, and 18 and
    8 with nano where the layers are compiled.
    """
    hidden, feed_forward, _, _ = _widths(config)
    if compiled:
        return 18 * hidden + 8 * feed_forward
    return (38 if autocast else 31) * hidden + 8 * feed_forward


def require_memory(estimate: MemoryEstimate, free_bytes: int, *, lora: bool, gradient_checkpointing: bool) -> None:
    """Raise UsageError, saying what to change, when an estimate exceeds the free memory."""
    if estimate.total_bytes <= free_bytes:
        return
    remedies = ["a smaller --row-tokens"]
    if lora and estimate.optimizer_bytes > estimate.total_bytes // 4:
        remedies.insert(0, "a smaller --lora-rank")
    if not gradient_checkpointing and estimate.activations_bytes > estimate.total_bytes // 4:
        remedies.insert(0, "--gradient-checkpointing")
    if not lora:
        remedies.append("--lora")
    parts = {"weights": estimate.weights_bytes, "optimizer": estimate.optimizer_bytes}
    parts |= {"weights gathered": estimate.gathered_bytes, "activations": estimate.activations_bytes}
    sizes = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts.items() if size)
    raise UsageError(
        f"This run needs about {estimate.total_bytes / GIB:.1f} GiB ({sizes}, or after them gradients "
        f"{estimate.gradients_bytes / GIB:.1f}) but {free_bytes / GIB:.1f} GiB are free: use {' or '.join(remedies)}."
    )


def _widths(config: PretrainedConfig) -> tuple[int, int, int, int]:
    """Widths of the hidden state, the feed-forward layer, all queries, and all keys."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    return hidden, getattr(config, "intermediate_size", None) or 4 * hidden, heads * head_dim, key_heads * head_dim
