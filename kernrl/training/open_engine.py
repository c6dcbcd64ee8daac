"""Opening the rollout engine that a run's settings name: the model in this process, or a server that fits the stage."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from kernrl.config import BestOfNConfig, EvalConfig, ImproveConfig, ReinforceConfig
from kernrl.errors import UsageError, did_you_mean
from kernrl.http_client import Server
from kernrl.policy.load import Policy, find_source, load_tokenizer
from kernrl.policy.ranks import Ranks
from kernrl.rollouts.collect import Verifier
from kernrl.rollouts.engines.dialects import ServerInfo, ask_server_info, dialect_of
from kernrl.rollouts.engines.distributed_engine import DistributedEngine
from kernrl.rollouts.engines.engine import RolloutEngine
from kernrl.rollouts.engines.generate_engine import UNBOUNDED, GenerateEngine
from kernrl.rollouts.engines.server_engine import ServerEngine
from kernrl.rollouts.engines.weight_sync import (
    AdapterLoad,
    CheckpointReload,
    NativeTransfer,
    WeightSync,
    reload_sglang,
    reload_transformers,
    reload_vllm,
)


def open_engine(config: ImproveConfig, policy: Policy, verifier: Verifier, run: Path, ranks: Ranks) -> RolloutEngine:
    """The engine of a training stage, with the policy's weights. Raises UsageError where it does not fit the stage.

    Args:
        run: folder of the run; checkpoints for a server are written under it.
    """
    embedded = config.engine == "generate"
    if embedded and ranks.sharded:
        raise UsageError(
            "--launch fsdp2 shards the weights, and no process can sample from a shard: give --engine server and --server-url."
        )
    if ranks.size == 1:
        turn = partial(verifier.untimed, policy.model.device.index)
        return local_engine(config, policy, ranks, turn) if embedded else server_engine(config, policy, run)
    if embedded:
        engine = local_engine(config, policy, ranks, nullcontext)
        return DistributedEngine(
            engine, ranks, busy=lambda rank: verifier.untimed(rank) if rank < ranks.beside else nullcontext()
        )
    return DistributedEngine(server_engine(config, policy, run) if ranks.leads else None, ranks)


def local_engine(
    config: ImproveConfig, policy: Policy, ranks: Ranks, gpu_turn: Callable[[], AbstractContextManager[None]]
) -> GenerateEngine:
    """The model in this process, on this rank's device."""
    on_gpu = policy.model.device.type == "cuda"
    return GenerateEngine(
        policy,
        batch_size=config.sampling_batch,
        # decoding reads every weight for every token, and bf16 has half the bytes of the trained float32
        dtype=torch.bfloat16 if on_gpu and not config.lora else None,
        deal=(ranks.index, ranks.size),
        gpu_turn=gpu_turn,
    )


def server_engine(config: ImproveConfig, policy: Policy, run: Path) -> ServerEngine:
    """A server with the policy's weights. Raises UsageError where it does not fit the stage."""
    server, info, name = connect(config)
    weights = weight_sync_for(config, server, info, name, policy, run / "server")
    context = getattr(policy.model.config, "max_position_embeddings", UNBOUNDED)
    dialect = dialect_of(info, policy.tokenizer, config.temperature)
    engine = ServerEngine(server, dialect, name, min(context, info.context or UNBOUNDED), weights)
    on_policy = isinstance(config, ReinforceConfig)
    if on_policy and not engine.exact:
        raise UsageError(
            f"--server-url {server.url}: this server gives text and not the tokens that it sampled, which reinforce needs: "
            "use vLLM or SGLang, or --engine generate."
        )
    if weights is not None:
        engine.sync(policy.model.named_parameters, 0)  # the server may still have another run's weights
    elif on_policy or (isinstance(config, BestOfNConfig) and config.rounds > 1):
        raise UsageError(
            "--weight-sync none: this stage samples from weights that it has changed; choose a way to send them to the server."
        )
    return engine


def open_evaluation_engine(config: EvalConfig) -> tuple[ServerEngine, PreTrainedTokenizerBase, GenerationConfig | None]:
    """For an evaluation on a server, whose weights stay as they are: engine, tokenizer, and the model's generation settings."""
    assert config.model
    server, info, name = connect(config)
    tokenizer = load_tokenizer(config.model, revision=config.revision)
    try:
        settings = GenerationConfig.from_pretrained(find_source(config.model), revision=config.revision or "main")
    except OSError:  # a model may have none
        settings = None
    dialect = dialect_of(info, tokenizer, config.temperature)
    return ServerEngine(server, dialect, name, info.context or tokenizer.model_max_length), tokenizer, settings


def require_server(config: ImproveConfig | EvalConfig) -> None:
    """Refuse a server that is not there, or has another model."""
    connect(config)


def connect(config: ImproveConfig | EvalConfig) -> tuple[Server, ServerInfo, str]:
    """The server, what is known of it, and the model's name there."""
    assert config.server_url
    server = Server(config.server_url, timeout_s=config.server_timeout_s)
    info = ask_server_info(server)
    # `transformers serve` loads any model it is asked for; the others list what they serve
    listed = (str(config.model),) if info.kind == "transformers" else info.models
    name = config.server_model or next(iter(listed), None)
    if name is None:
        raise UsageError(f"--server-url {server.url}: the server lists no model; name one with --server-model.")
    known = [*listed, *info.adapters]
    if info.kind != "transformers" and info.models and name not in known:
        raise UsageError(f"--server-model: the server has no {name!r}: {did_you_mean(name, known)}")
    return server, info, name


def weight_sync_for(
    config: ImproveConfig, server: Server, info: ServerInfo, name: str, policy: Policy, folder: Path
) -> WeightSync | None:
    """How new weights reach the server; None for `none`. Raises UsageError for a way that this server does not offer."""
    way = config.weight_sync or cheapest_weight_sync(config, info)
    if way == "none":
        return None
    if (way == "lora") != config.lora:
        raise UsageError(
            f"--weight-sync {way}: under --lora the adapter is what changes, so use 'lora' with --lora and only with it."
        )
    dev_mode = "start vLLM with VLLM_SERVER_DEV_MODE=1"
    dtype = getattr(torch, str(info.settings.get("model_config", {}).get("dtype", "bfloat16")).removeprefix("torch."))
    if way == "lora":
        if info.kind != "vllm":
            raise UsageError("--weight-sync lora: only vLLM loads adapters while it runs.")
        if info.settings.get("parallel_config", {}).get("data_parallel_size", 1) > 1:
            raise UsageError("--weight-sync lora: under --data-parallel-size only one of vLLM's replicas loads the adapter.")
        return AdapterLoad(server, policy, folder)
    if way in ("nccl", "ipc"):
        if info.kind != "vllm":
            raise UsageError(f"--weight-sync {way}: only vLLM takes weights in that way; use --weight-sync checkpoint.")
        if ((info.settings.get("weight_transfer_config") or {}).get("backend")) != way:
            raise UsageError(f'--weight-sync {way}: {dev_mode} and --weight-transfer-config \'{{"backend": "{way}"}}\'.')
        return NativeTransfer(server, way, name, dtype)
    if info.kind == "openai":
        raise UsageError(
            "--weight-sync checkpoint: kernrl knows no route by which this server reads weights: use vLLM or SGLang."
        )
    if info.kind == "vllm" and not info.settings:
        raise UsageError(f"--weight-sync checkpoint: {dev_mode}.")
    if info.kind == "transformers":
        load = reload_transformers(server)
    else:
        load = (reload_vllm if info.kind == "vllm" else reload_sglang)(server, name)
    return CheckpointReload(policy, folder, dtype, load)


def cheapest_weight_sync(config: ImproveConfig, info: ServerInfo) -> str:
    """The cheapest way that the server offers."""
    if config.lora:
        return "lora"
    if info.kind == "openai":
        return "none"
    backend = (info.settings.get("weight_transfer_config") or {}).get("backend")
    return backend if backend in ("nccl", "ipc") else "checkpoint"
