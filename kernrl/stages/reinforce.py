"""`kernrl reinforce`: policy gradient with verified reward. The whole loop, from top to bottom.

Each step

1. samples several rollouts of each of a few tasks, and has every candidate verified while others are still being sampled
   (`sample_groups`);
2. turns their rewards into advantages within each group, the rollouts of one task (`training_examples`);
3. takes one policy-gradient step, or several, on the sampled tokens (`Learner.update`);
4. gives the sampler the new weights, and is written to a checkpoint (`Learner.save`).

A step is a function of the seed, its number and the weights alone: a run that was killed repeats the step that it was in, and
ends with the same weights as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kernrl.config import ReinforceConfig
from kernrl.config.by_model import is_nano
from kernrl.console import Result, log
from kernrl.kernels import check_ids
from kernrl.policy.checkpoint import read_json, write_json
from kernrl.policy.examples import Example
from kernrl.policy.finetune import FINAL_RATIO, falling
from kernrl.policy.parallel import accumulating, clip_gradients, load_optimizer, save_training, wrap_for_ranks
from kernrl.rollouts.batch import LossRow, pack_rollouts, rows_of_rank
from kernrl.rollouts.collect import Collected, Verifier
from kernrl.rollouts.fall_of_correctness import Correctness
from kernrl.rollouts.step_metrics import step_metrics
from kernrl.runs.interrupt import StopAfterStep
from kernrl.runs.steps_table import LiveTable
from kernrl.training.curriculum import TaskOrder
from kernrl.training.heldout_checks import HeldoutChecks
from kernrl.training.policy_loss import PolicyLoss, UpdateMetrics, reference_logprobs
from kernrl.training.returns import advantages_of_groups, discounted_returns, is_constant
from kernrl.training.run_history import why_nothing
from kernrl.training.session import Session, open_session, require_judged

MAX_REFILLS = 3
"""Times a step draws further tasks in place of groups whose rewards are all equal."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step learns from. Every rank has the same."""

    examples: list[Example]
    """Prompt and sampled tokens of each rollout, with its advantage as weight."""
    logprobs: list[list[float] | None]
    """Log-probs of each example's sampled tokens when they were sampled; None where the engine gives none."""
    metrics: dict[str, Any]
    """Of all attempts of the step, learnt from or not."""
    seconds: dict[str, float]
    """Of sampling and verification."""


NO_CONVERSATION = (
    "--turns {turns}: nano was taught one prompt and one reply, and cannot read what it is told between turns: its second "
    "replies were no code (0 of 48 right, after 33 of 48). Use a model that chats, or leave --turns out."
)


def run(config: ReinforceConfig, verifier: Verifier | None = None) -> Result:
    """Run the stage: steps, checkpoints, and a final model that plain transformers loads.

    Args:
        verifier: one that is open already; by default one is opened for the run.
    """
    if config.turns > 1 and is_nano(config.model):
        log.print(NO_CONVERSATION.format(turns=config.turns), style="yellow", highlight=False, soft_wrap=True)
    with (
        open_session(config, verifier, config.turns) as session,
        LiveTable(None if config.time_limit_s else config.steps, session.activity.line) as table,
    ):
        return train(Learner(session, config), table)


def train(learner: Learner, table: LiveTable) -> Result:
    """Steps until all are taken or the time is up, and the final model. Raises KeyboardInterrupt once it has saved the step in
    which it was told to stop."""
    session, config = learner.session, learner.config
    with StopAfterStep(session.ranks) as stop:
        checks = HeldoutChecks(session, config)
        session.watch.begin_steps(learner.step, config.steps, config.time_limit_s and config.time_limit_s - learner.seconds)
        while not learner.finished:
            metrics = train_step(learner)
            metrics |= checks.after_step(learner.step, last=learner.finished)
            session.record(metrics, learner.step)
            table.add(metrics)
            interrupted = stop.wanted()
            best = session.best_step() if config.keep_best else None
            if interrupted or learner.step == best or learner.step % config.save_every == 0 or learner.finished:
                session.directory.checkpoint(learner.step, learner.save, session.ranks, keep=config.keep_checkpoints, best=best)
            if interrupted:
                raise KeyboardInterrupt
            session.give_up(config.give_up_after)
        return session.finish(config, {"steps": learner.step, "seconds": learner.seconds})


def train_step(learner: Learner) -> dict[str, Any]:
    """Sample, verify, compute advantages, update; returns the step's metrics."""
    started = time.perf_counter()
    session, step = learner.session, learner.step + 1
    batch = session.lead(lambda: sample_batch(learner, step))

    update_started = time.perf_counter()
    update: dict[str, float] = {}
    if batch.examples:
        rows = pack_rollouts(batch.examples, batch.logprobs, row_tokens=session.row_tokens, pad_id=session.pad_id)
        update = learner.update(list(rows))
    session.sync_sampler(version=step)

    now = time.perf_counter()
    seconds = {**batch.seconds, "update": now - update_started, "step": now - started}
    learner.finish_step(batch.metrics, session.ranks.tell(seconds["step"]))
    # of weight 0 are those of --constant-groups keep: --beta and --entropy-coef move weights on them, but no verdict teaches
    taught = [e for e in batch.examples if e.weight]
    learnt = {"learnt": len(taught), "learnt_tokens": sum(len(e.completion_ids) for e in taught)}
    speed = {"attempts_per_s": batch.metrics["attempts"] / seconds["step"], **session.gpu_time(learner.seconds)}
    return {"step": step, **batch.metrics, **learnt, **update, "seconds": seconds, **speed}


# --- sample and verify -------------------------------------------------------------------------------------------------


def sample_batch(learner: Learner, step: int) -> Batch:
    """What the step learns from. Runs on rank 0, where the other ranks' engines help to sample."""
    collected = sample_groups(learner, step)
    require_judged(collected.attempts)
    learner.session.know(collected.attempts)
    # a curriculum asks harder tasks as the run goes on, so that fewer attempts are correct says nothing
    before = None if learner.config.curriculum else learner.correctness
    metrics = step_metrics(collected, learner.first_length, before)
    examples, logprobs = training_examples(learner.session, learner.config, collected)
    if not any(e.weight for e in examples):
        metrics["alarms"].append(why_nothing(collected.attempts, learner.config.max_tokens, learner.session.fits))
    return Batch(examples, logprobs, metrics, dict(collected.seconds))


def sample_groups(learner: Learner, step: int) -> Collected:
    """The step's attempts, with their verdicts and rewards: one group of rollouts a task, and one more a further turn.

    Under `--constant-groups refill`, groups whose rewards are all equal are replaced by groups of further tasks.
    """
    session, config = learner.session, learner.config
    collected, missing, groups = Collected(), config.tasks_per_step, 0
    for draw in range(1 + MAX_REFILLS):
        numbers = learner.order.draw(missing)
        more = session.collector.collect(
            [session.tasks[n] for n in numbers],
            seed=(config.seed, step, draw),
            first_group=groups,
            on_attempt=session.sample_writer(step),
        )
        first_turns = [group for group in more.groups() if group[0].turn == 1]
        learner.order.record_groups(numbers, first_turns)
        collected.extend(more)
        groups += len(numbers)
        missing = sum(is_constant([a.reward.value if a.reward else None for a in group]) for group in first_turns)
        if config.constant_groups != "refill" or missing == 0:
            break
    return collected


# --- advantages --------------------------------------------------------------------------------------------------------


def training_examples(
    session: Session, config: ReinforceConfig, collected: Collected
) -> tuple[list[Example], list[list[float] | None]]:
    """The attempts to learn from, weighted by their advantages, and the log-probs of their sampled tokens.

    An attempt's return is its own reward and a discounted share of those of its later turns. Its advantage is relative to the
    returns of its group: the attempts at one task in the same turn.
    """
    returns: dict[tuple[int, int, int], float] = {}
    for trajectory in collected.trajectories():
        judged = [a for a in trajectory if a.reward is not None]
        values = discounted_returns([a.reward.value for a in judged if a.reward], config.gamma)
        returns |= {a.order: value for a, value in zip(judged, values, strict=True)}

    groups = collected.groups()
    earned = [[returns.get(a.order) for a in group] for group in groups]
    correct = [[a.verdict.correct for a in group] for group in groups]
    advantages = advantages_of_groups(earned, config.advantage, correct, config.failure_weight)
    examples, logprobs = [], []
    for group, values in zip(groups, advantages, strict=True):
        if config.constant_groups != "keep" and not values.any():
            continue  # nothing to learn, and its tokens would only dilute the mean
        for attempt, advantage in zip(group, values.tolist(), strict=True):
            if attempt.order in returns and session.fits(attempt):
                examples.append(Example(attempt.prompt_ids, attempt.rollout.token_ids, advantage))
                logprobs.append(attempt.rollout.logprobs)
    return examples, logprobs


# --- loss and step -----------------------------------------------------------------------------------------------------


class Learner:
    """The policy in training: its loss, its optimizer, and the position in the run."""

    def __init__(self, session: Session, config: ReinforceConfig):
        self.session, self.config = session, config
        self.step = 0
        """Steps taken."""
        self.seconds = 0.0
        """Wall time of all steps, over every resume."""
        self.first_length: float | None = None
        """Mean length in tokens of the first step's rollouts."""
        self.correctness = Correctness()
        """Of the steps so far."""
        self.order = TaskOrder(len(session.tasks), config.seed, config.curriculum)
        self.policy_loss = PolicyLoss(session.policy, config, session.ranks)
        self.loss = wrap_for_ranks(session.ranks, self.policy_loss, session.policy, methods=["logprobs"])
        """`policy_loss` as it is called in training: gradients are averaged over ranks."""
        self.trainable = [p for p in session.policy.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.trainable,
            lr=config.learning_rate,
            eps=config.adam_epsilon,
            weight_decay=0.0,
            fused=session.device.type == "cuda",
        )
        self.reference: Callable[[LossRow], Tensor] | None = None
        if config.beta:
            self.reference = reference_logprobs(self.policy_loss, config, session.ranks)
        if session.checkpoint:
            self._restore(session.checkpoint)

    @property
    def finished(self) -> bool:
        """Whether the run has taken its steps, or its time is up."""
        return self.step >= self.config.steps or self.seconds >= (self.config.time_limit_s or math.inf)

    @property
    def learning_rate(self) -> float:
        """Of the step in flight: a linear warm-up, then what `--schedule` says, by the share of the steps after it, or of the
        time where less of that is left."""
        config = self.config
        rise = min(1.0, (self.step + 1) / (config.warmup_steps + 1))
        if config.schedule == "constant":
            return config.learning_rate * rise
        progress = max(0, self.step - config.warmup_steps) / max(1, config.steps - 1 - config.warmup_steps)
        progress = max(progress, self.seconds / (config.time_limit_s or math.inf))
        return config.learning_rate * rise * (FINAL_RATIO + (1 - FINAL_RATIO) * falling(config.schedule, progress))

    def update(self, rows: list[LossRow]) -> dict[str, float]:
        """Take the step's optimizer steps: `--epochs` passes over the rows, each in `--updates-per-epoch` updates.

        Every rank is given all rows, and works on its share of each update's. Returns the loss and its metrics, as means over
        tokens and updates.
        """
        config, ranks, device = self.config, self.session.ranks, self.session.device
        rows_per_update = -(-len(rows) // config.updates_per_epoch)
        updates = [rows[start : start + rows_per_update] for start in range(0, len(rows), rows_per_update)]
        mine = [rows_of_rank(update, ranks, device) for update in updates]
        for row in [row for update in mine for row in update]:
            if self.reference:
                row.ref_logprobs = self.reference(row)
            if config.epochs * config.updates_per_epoch > 1:
                row.old_logprobs = self.policy_loss.logprobs(row)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        metrics = UpdateMetrics(len(updates) * config.epochs, device)
        self.session.policy.model.train()
        for all_rows, own_rows in list(zip(updates, mine, strict=True)) * config.epochs:
            num_tokens = sum(row.row.num_targets for row in all_rows)
            num_sequences = sum(row.num_sequences for row in all_rows)
            for number, row in enumerate(own_rows, start=1):
                with accumulating(self.loss, last=number == len(own_rows)):
                    loss, row_metrics = self.loss(row, num_tokens, num_sequences)
                    (loss * ranks.size).backward()  # gradients are averaged over ranks, and the loss is a sum over them
                metrics.add_row(loss, row_metrics, row.row.num_targets / num_tokens)
            metrics.add_update(clip_gradients(self.trainable, config.max_grad_norm))
            self.optimizer.step()
            self.optimizer.zero_grad()
        check_ids()
        return metrics.over_ranks(ranks) | {"learning_rate": self.learning_rate}

    def finish_step(self, metrics: dict[str, Any], seconds: float) -> None:
        """Count the step: what is saved from here on belongs to the next."""
        self.step += 1
        self.seconds += seconds
        self.first_length = self.first_length or metrics["length"]
        self.correctness.take(metrics["correct"], metrics["tasks"])

    # --- save and resume -----------------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and position; every rank calls this."""
        save_training(self.session.ranks, self.session.policy, self.optimizer, folder)
        if not self.session.ranks.leads:
            return
        order = {"drawn": self.order.drawn, "pass_rates": self.order.pass_rates}
        seen = {"first_length": self.first_length, "correctness": asdict(self.correctness)}
        state = {"step": self.step, "seconds": self.seconds, **seen, "order": order}
        write_json(folder / "reinforce_state.json", state)

    def _restore(self, folder: Path) -> None:
        """Resume from what `save` wrote; `open_session` has loaded the policy's weights from the same folder."""
        load_optimizer(self.session.ranks, self.session.policy, self.optimizer, folder)
        state = read_json(folder / "reinforce_state.json")
        self.step, self.seconds = state["step"], state["seconds"]
        self.first_length, self.correctness = state["first_length"], Correctness(**state.get("correctness", {}))
        self.order.drawn = state["order"]["drawn"]
        self.order.pass_rates = {int(task): rate for task, rate in state["order"]["pass_rates"].items()}
        self.session.sync_sampler(version=self.step)
