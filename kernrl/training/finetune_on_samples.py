"""Fine-tuning on judged rollouts: what best-of-N and reward-weighted SFT share."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from kernrl.config import FinetuneOnSamplesConfig
from kernrl.console import counted, log
from kernrl.files import atomic_write
from kernrl.policy.examples import Example
from kernrl.policy.finetune import Finetuner, FinetuneSettings
from kernrl.policy.packing import PackedDataset
from kernrl.policy.parallel import whole_weights
from kernrl.rollouts.collect import Attempt, Collected
from kernrl.tasks.task import Task
from kernrl.training.session import Session, require_judged


def sample_and_judge(
    session: Session, tasks: list[Task], seed: tuple[int, ...], step: int, *, first_group: int = 0
) -> Collected:
    """Attempts at the tasks, each written to `samples.jsonl` as it is judged."""
    collected = session.collector.collect(tasks, seed, first_group, session.sample_writer(step))
    require_judged(collected.attempts)
    return collected


class SampleFinetuner:
    """Fine-tunes a session's policy on rollouts, once or round after round."""

    def __init__(self, session: Session, config: FinetuneOnSamplesConfig):
        self._session, self._config = session, config
        self._loss: torch.nn.Module | None = None  # wrapped for several ranks in the first round, and used again in the others

    def finetune(self, examples: list[Example], seed: int) -> dict[str, Any]:
        """Train on token ids as they were sampled; returns metrics.

        Args:
            examples: at least one; each with the weight of its tokens in the loss.
            seed: of the shuffles.
        """
        started = time.perf_counter()
        session, config = self._session, self._config
        data = PackedDataset(examples, session.row_tokens, session.pad_id, seed)
        settings = FinetuneSettings(
            steps=max(1, round(config.epochs * data.rows_per_epoch / config.rows_per_step)),
            rows_per_step=config.rows_per_step,
            learning_rate=config.learning_rate,
            warmup_ratio=config.warmup_ratio,
            schedule=config.schedule,
            weight_decay=config.weight_decay,
            max_grad_norm=config.max_grad_norm,
            adam_epsilon=config.adam_epsilon,
        )
        if idle := -config.rows_per_step % session.ranks.size:
            without = f"{counted(idle, 'process', 'processes')} without a row"
            log.print(f"--rows-per-step {config.rows_per_step} leaves {without}; give a multiple of {session.ranks.size}.")
        losses: list[float] = []
        finetuner = Finetuner(session.ranks, session.policy, data, settings, loss=self._loss)
        finetuner.run(lambda metrics: losses.append(metrics["loss"]))
        self._loss = finetuner.loss
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
    path.unlink(missing_ok=True)  # there only where a killed round is run again
    with atomic_write(path) as file:
        for a in attempts:
            speedup = a.verdict.speedup()
            row = {
                "prompt": a.messages,
                "completion": [{"role": "assistant", "content": a.reply or a.text}],
                "task": a.task.id,
                "reward": a.reward.value if a.reward else None,
                "speedup_x": speedup.value if speedup else None,
            }
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def save_policy(session: Session, folder: Path) -> None:
    """Write the weights in training precision, from which the next round starts. Every rank calls this."""
    weights = whole_weights(session.policy) if session.ranks.sharded else None
    if session.ranks.leads:
        session.policy.model.save_pretrained(folder, state_dict=weights)
        session.policy.tokenizer.save_pretrained(folder)
