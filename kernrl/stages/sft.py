"""`kernrl sft`: teach a model to write kernels from worked pairs. nano is made here, from nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.table import Table
from transformers import AutoConfig, set_seed

from kernrl.config import SftConfig
from kernrl.console import Result, log, progress
from kernrl.errors import UsageError
from kernrl.policy.attention import VARLEN
from kernrl.policy.checkpoint import commit_checkpoint
from kernrl.policy.examples import tokenize_pairs
from kernrl.policy.finetune import Finetuner, FinetuneSettings
from kernrl.policy.load import Policy, add_lora, load_policy
from kernrl.policy.memory import count_parameters, estimate_training, require_memory
from kernrl.policy.nano import create_nano, train_tokenizer
from kernrl.policy.packing import PackedDataset
from kernrl.policy.pairs import Pair
from kernrl.stages.run import RunDirectory
from kernrl.stages.sft_data import read_pairs
from kernrl.verifier.devices import device_for

TOKENIZER_PAIRS = 8_000
"""Pairs that nano's tokenizer is trained on: enough for every merge and phrase that matters, in a few seconds."""


def run(config: SftConfig) -> Result:
    """Run the stage: data, policy, steps, and a checkpoint that plain transformers loads."""
    mixed = "bf16" if torch.cuda.is_available() else "no"
    accelerator = Accelerator(mixed_precision=mixed, log_with=None if config.report_to == "none" else config.report_to)
    set_seed(config.seed)
    row_tokens = config.row_tokens or (65_536 if accelerator.device.type == "cuda" else 4_096)
    config = config.model_copy(update={"row_tokens": row_tokens})
    directory = RunDirectory.open(config.output, config, resume=config.resume)

    pairs = list(read_pairs(config, "train"))
    policy = starting_policy(config, directory.latest() if config.resume else None, pairs)
    train = pack(pairs, policy, config, "train")
    validation = pack(read_pairs(config, "validation"), policy, config, "validation")
    settings = schedule(config, train)

    policy.model.to(accelerator.device)  # pyright: ignore[reportArgumentType]
    compile_model = config.compile and accelerator.device.type == "cuda"
    finetuner = Finetuner(accelerator, policy, train, settings, compile_model=compile_model)
    if config.resume and (latest := directory.latest()):
        finetuner.restore(latest)
    history = train_and_save(finetuner, validation, directory, config)

    final = commit_checkpoint(config.output, "model", lambda folder: save_final(policy, folder))
    results = {"validation_loss": history[-1]["validation_loss"], "steps": settings.steps, "model": str(final)}
    directory.write_results(results)
    return Result(results, summary(results, history))


def starting_policy(config: SftConfig, checkpoint: Path | None, pairs: list[Pair]) -> Policy:
    """The policy at step 0, or as the checkpoint left it."""
    dtype = "bf16" if config.lora and torch.cuda.is_available() else "fp32"
    if config.model == "nano" and checkpoint is None:
        texts = [text for p in pairs[:TOKENIZER_PAIRS] for text in (p.messages[-1]["content"], p.completion)]
        tokenizer = train_tokenizer(texts)
        policy = Policy(create_nano(tokenizer, config.seed), tokenizer)
        policy.model.set_attn_implementation(VARLEN)
    else:
        source = str(checkpoint) if checkpoint and not config.lora else config.model
        foretell_memory(config, source, dtype)
        policy = load_policy(source, dtype=dtype, revision=config.revision if source == config.model else None)
    if config.lora:
        adapted = add_lora(policy.model, rank=config.lora_rank, alpha=2 * config.lora_rank, checkpoint=checkpoint)
        policy = Policy(adapted, policy.tokenizer)
    if config.gradient_checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    return policy


def foretell_memory(config: SftConfig, source: str, dtype: str) -> None:
    """Refuse, before anything is loaded, a run that this GPU cannot hold."""
    if not torch.cuda.is_available():
        return
    try:
        model_config = AutoConfig.from_pretrained(source)
        parameters = count_parameters(model_config)
    except (OSError, ValueError):
        return  # load_policy says what is wrong with it
    estimate = estimate_training(
        model_config,
        parameters=parameters,
        row_tokens=config.row_tokens or 0,
        weight_bytes=2 if dtype == "bf16" else 4,
        lora_rank=config.lora_rank if config.lora else 0,
        gradient_checkpointing=config.gradient_checkpointing,
    )
    free, _ = torch.cuda.mem_get_info()
    require_memory(estimate, free, lora=config.lora, gradient_checkpointing=config.gradient_checkpointing)


def pack(pairs: Iterator[Pair] | list[Pair], policy: Policy, config: SftConfig, split: str) -> PackedDataset:
    """Tokenize and pack one split."""
    row_tokens = config.row_tokens or config.max_length
    longest = min(config.max_length, row_tokens)
    tokenized = tokenize_pairs(pairs, policy.tokenizer, longest)
    if tokenized.too_long:
        log.print(f"{tokenized.too_long} {split} pairs are longer than {longest} tokens and were left out (--max-length).")
    if not tokenized.examples:
        raise UsageError(f"--data {config.data}: no {split} pair is left to learn from; see --max-length and --map.")
    pad: Any = policy.tokenizer.pad_token_id
    return PackedDataset(tokenized.examples, row_tokens, pad, config.seed if split == "train" else None)


def schedule(config: SftConfig, train: PackedDataset) -> FinetuneSettings:
    """How many steps, and at which rate."""
    steps = config.steps or max(1, round(config.epochs * train.rows_per_epoch / config.rows_per_step))
    return FinetuneSettings(
        steps=steps,
        rows_per_step=config.rows_per_step,
        learning_rate=config.learning_rate,
        warmup_ratio=config.warmup_ratio,
        weight_decay=config.weight_decay,
    )


def train_and_save(
    finetuner: Finetuner, validation: PackedDataset, directory: RunDirectory, config: SftConfig
) -> list[dict[str, Any]]:
    """All steps, with evaluation and checkpoints on the way; returns the lines that carry a validation loss."""
    accelerator, steps = finetuner.accelerator, finetuner.settings.steps
    evaluated: list[dict[str, Any]] = []
    peak = peak_tflops()
    with progress() as bar:
        task = bar.add_task("sft", total=steps, completed=finetuner.step)

        def on_step(metrics: dict[str, Any]) -> None:
            step = metrics["step"]
            if peak:
                metrics["mfu"] = metrics["tflops"] / peak
            if step == steps or step % config.evaluate_every == 0:
                metrics["validation_loss"] = finetuner.evaluate(validation)
                evaluated.append(metrics)
            if accelerator.is_main_process:
                directory.log(**metrics)
                if step % config.save_every == 0 and step < steps:
                    directory.checkpoint(step, finetuner.save)
            bar.update(task, completed=step, description=f"sft: loss {metrics['loss']:.3f}")

        finetuner.run(on_step)
    return evaluated


def peak_tflops() -> float | None:
    """Dense bf16 peak of this GPU by its data sheet, the denominator of MFU; None where the table has none."""
    device = device_for(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    return device.half_tflops if device else None


def save_final(policy: Policy, folder: Path) -> None:
    """The model alone, in bf16 and in shards small enough to keep in a repository."""
    model: Any = policy.model
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    model = model.to("cpu", torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="15MB")
    policy.tokenizer.save_pretrained(folder)


def summary(results: dict[str, Any], history: list[dict[str, Any]]) -> Table:
    """What a person sees at the end."""
    table = Table("step", "loss", "validation loss", "tokens/s", title=f"model: {results['model']}")
    for line in history[-5:]:
        cells = (line["step"], f"{line['loss']:.4f}", f"{line['validation_loss']:.4f}", f"{line['tokens_per_s']:,.0f}")
        table.add_row(*map(str, cells))
    return table
