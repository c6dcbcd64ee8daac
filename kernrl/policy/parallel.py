"""A policy over several processes: replicated (DDP) or sharded (FSDP2).

Training state is saved by parameter name, so that a run can resume in any number of processes, sharded or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from kernrl.errors import UsageError
from kernrl.policy.checkpoint import write_json
from kernrl.policy.load import SHARDS, Policy, add_lora, load_policy
from kernrl.policy.ranks import Ranks

SMALL_PARAMETERS = 100_000_000
"""Models up to this size are saved in files small enough for a git repository; a larger one would be hundreds of them."""

ADAPTERS = "adapters"
"""Folder inside a model's with its LoRA adapters alone, as peft loads them."""

WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


def wrap_for_ranks(
    ranks: Ranks, module: nn.Module, policy: Policy, *, methods: Sequence[str] = (), compile_layers: bool = False
) -> nn.Module:
    """`module`, which holds the policy, as every rank calls it: as it is, wrapped in DDP, or sharded by FSDP2.

    Sharded, a layer's weights are gathered in bf16 just before it runs; those outside any layer, the embedding and the head,
    when `module` is called. Inside that call `policy.head_weight` is therefore the whole tensor, and its gradient is reduced
    in float32 like every other. Create optimizers after this call: sharding replaces the parameters.

    Args:
        methods: names of methods of `module` that run the policy, besides `forward`: where it is sharded, they gather its
            weights as `forward` does.
        compile_layers: compile each layer by itself, where the policy is sharded.

    Raises:
        UsageError: LoRA is to be sharded.
    """
    accelerator = ranks.accelerator
    if ranks.sharded:
        if hasattr(policy.model, "peft_config"):
            raise UsageError("--lora does not go with FSDP2, and needs no shards: use --launch ddp.")
        dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else None
        precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
        mesh = init_device_mesh(accelerator.device.type, (ranks.size,))
        layers: Any = policy.base.layers
        for layer in layers:
            if compile_layers:
                layer.compile(dynamic=False)
            fully_shard(layer, mesh=mesh, mp_policy=precision)
        fully_shard(module, mesh=mesh, mp_policy=precision)
        for method in methods:
            register_fsdp_forward_method(module, method)
        return module
    module.to(accelerator.device)
    if ranks.size == 1:
        return module
    devices = [accelerator.device] if accelerator.device.type == "cuda" else None
    return DistributedDataParallel(module, devices, gradient_as_bucket_view=True)


def accumulating(module: nn.Module, *, last: bool) -> AbstractContextManager[Any]:
    """Context of one row's forward and backward pass: replicas exchange gradients after the last row only.

    Shards exchange them after every row: whole gradients would take the memory that sharding saves.
    """
    return module.no_sync() if isinstance(module, DistributedDataParallel) and not last else nullcontext()


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale gradients down to `max_norm` over all parameters; returns the norm they had."""
    norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def whole_weights(policy: Policy) -> dict[str, Tensor]:
    """The policy's weights by name, on rank 0's CPU alone where there are several ranks; every rank calls this."""
    weights: Any = get_model_state_dict(policy.model, options=WHOLE)
    return weights


def save_training(ranks: Ranks, policy: Policy, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Write weights, tokenizer and optimizer; every rank calls this, and writes its own shards."""
    if ranks.leads:
        policy.tokenizer.save_pretrained(folder)
    if ranks.sharded:
        if ranks.leads:
            policy.model.config.save_pretrained(folder)
            if policy.model.generation_config is not None:
                policy.model.generation_config.save_pretrained(folder)
        state = {"model": get_model_state_dict(policy.model), "optimizer": get_optimizer_state_dict(policy.model, optimizer)}
        save(state, checkpoint_id=folder / SHARDS, process_group=ranks.group)
    elif ranks.leads:
        policy.model.save_pretrained(folder)
        torch.save(get_optimizer_state_dict(policy.model, optimizer, options=WHOLE), folder / "optimizer.pt")


def load_optimizer(ranks: Ranks, policy: Policy, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Load the optimizer that `save_training` wrote in any number of processes; `load_policy` loads the weights."""
    if (folder / SHARDS).exists():
        state = {"optimizer": get_optimizer_state_dict(policy.model, optimizer)}
        load(state, checkpoint_id=folder / SHARDS, process_group=ranks.group)
        set_optimizer_state_dict(policy.model, optimizer, state["optimizer"])
    else:
        state = torch.load(folder / "optimizer.pt", weights_only=True)
        set_optimizer_state_dict(policy.model, optimizer, state, options=StateDictOptions(full_state_dict=True))


def save_final(ranks: Ranks, policy: Policy, folder: Path, history: list[dict[str, Any]]) -> None:
    """Write the model in bf16, a small one in files that fit a git repository, and its training history.

    LoRA adapters are merged into the weights, and also kept by themselves in `adapters/`. Weights in 4 bits are not merged
    into, which would round the sum once more: the whole ones are loaded again.

    Every rank calls this.
    """
    model: Any = policy.model
    weights = None
    if ranks.sharded:
        weights = {name: tensor.bfloat16() for name, tensor in whole_weights(policy).items()}
        model.config.dtype = torch.bfloat16
    if not ranks.leads:
        return
    if hasattr(model, "merge_and_unload"):
        model.save_pretrained(folder / ADAPTERS)
        if policy.quantised_from:
            source, revision = policy.quantised_from
            whole = load_policy(source, dtype="bf16", revision=revision).model
            model = add_lora(whole, checkpoint=folder / ADAPTERS)
        model = model.merge_and_unload()
    if not ranks.sharded:
        model = model.to("cpu", torch.bfloat16)
    shard_size = "15MB" if model.num_parameters() <= SMALL_PARAMETERS else "5GB"
    model.save_pretrained(folder, state_dict=weights, max_shard_size=shard_size)
    policy.tokenizer.save_pretrained(folder)
    write_json(folder / "trainer_state.json", {"global_step": history[-1]["step"], "log_history": history})
