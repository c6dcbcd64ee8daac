"""Supervised steps on what was sampled: the second half of best-of-N and of reward-weighted SFT."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kernrl.config import FinetuneOnSamplesConfig
from kernrl.console import log
from kernrl.files import atomic_write
from kernrl.policy.finetune import Finetuner, FinetuneSettings
from kernrl.policy.packing import Example, PackedDataset
from kernrl.policy.parallel import whole_weights
from kernrl.rollouts.collect import Attempt, Collected
from kernrl.tasks.task import Task
from kernrl.training.workbench import Bench, require_judged, sample_row


def sample_and_judge(bench: Bench, tasks: list[Task], seed: tuple[int, ...], step: int) -> Collected:
    """Attempts at the tasks, each written down as it is judged."""
    bench.collector.on_attempt = lambda attempt: bench.directory.add_sample(sample_row(attempt, step))
    collected = bench.collector.collect(tasks, seed)
    require_judged(collected.attempts)
    return collected


def fine_tune(bench: Bench, config: FinetuneOnSamplesConfig, examples: list[Example], seed: int) -> dict[str, Any]:
    """Train on tokens as they were sampled; the sampler has the new weights when this returns.

    Args:
        examples: at least one; each with the weight of its tokens in the loss.
        seed: of the shuffles.
    """
    started = time.perf_counter()
    data = PackedDataset(examples, bench.row_tokens, bench.pad_id, seed)
    settings = FinetuneSettings(
        steps=max(1, round(config.epochs * data.rows_per_epoch / config.rows_per_step)),
        rows_per_step=config.rows_per_step,
        learning_rate=config.learning_rate,
        warmup_ratio=config.warmup_ratio,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
    )
    if idle := -config.rows_per_step % bench.ranks.size:
        log.print(f"--rows-per-step {config.rows_per_step} leaves {idle} processes without a row; give a multiple of them.")
    losses: list[float] = []
    finetuner = Finetuner(bench.ranks, bench.policy, data, settings, loss=bench.loss)
    finetuner.run(lambda metrics: losses.append(metrics["loss"]))
    bench.loss = finetuner.loss
    return {
        "learnt": len(examples),
        "learnt_tokens": sum(len(e.completion_ids) for e in examples),
        "updates": settings.steps,
        "loss": losses[-1],
        "first_loss": losses[0],
        "update_s": time.perf_counter() - started,
    }


def write_dataset(path: Path, attempts: Iterable[Attempt]) -> None:
    """Attempts as rows of TRL's conversational prompt-completion form."""
    path.unlink(missing_ok=True)  # only ever a round that is run again after a kill
    with atomic_write(path) as file:
        for a in attempts:
            speedup = a.verdict.speedup()
            row = {
                "prompt": a.messages,
                "completion": [{"role": "assistant", "content": a.text}],
                "task": a.task.id,
                "reward": a.reward.value if a.reward else None,
                "speedup_x": speedup.value if speedup else None,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def save_policy(bench: Bench, folder: Path) -> None:
    """The weights as they are trained: what the next round starts from. Every rank calls this."""
    weights = whole_weights(bench.policy) if bench.ranks.sharded else None
    if bench.ranks.leads:
        bench.policy.model.save_pretrained(folder, state_dict=weights)
        bench.policy.tokenizer.save_pretrained(folder)
