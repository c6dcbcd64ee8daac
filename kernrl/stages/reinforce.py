"""`kernrl reinforce`: policy gradient with verified reward. The whole loop, from top to bottom.

A step asks a few tasks several times each, has every answer verified while others are still being written, compares the
rewards within each group, and takes one policy-gradient step (or several) on the tokens that were sampled. What a step does
is a function of the seed, the step and the weights alone: a run that was killed goes on with the step it was in.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from kernrl.algorithms.curriculum import TaskOrder
from kernrl.algorithms.returns import advantages_of_groups, discounted_returns, is_constant, mismatch_kl
from kernrl.config import ReinforceConfig
from kernrl.console import Result
from kernrl.kernels import check_ids, linear_grpo_loss, token_logprobs
from kernrl.policy.attention import packed_kwargs
from kernrl.policy.checkpoint import commit_checkpoint, read_json, write_json
from kernrl.policy.load import Policy, load_policy
from kernrl.policy.packing import Example
from kernrl.rollouts.batch import LossRow, pack_rollouts
from kernrl.rollouts.collect import Collected, Verifier
from kernrl.rollouts.metrics import step_metrics
from kernrl.stages.improve import Bench, pass_rates, require_judged, sample_row, workbench
from kernrl.stages.live import LiveTable, final_table
from kernrl.stages.pipeline import OneAhead
from kernrl.stages.sft import save_final

RATIOS = ("ratio_mean", "clip_low", "clip_high", "clip_delta", "kl_old")
AVERAGED = (*RATIOS, "kl_ref", "entropy", "correction_mean", "correction_cut", "ess", "mismatch_kl")
"""Metrics of a row that are means over its tokens."""

REFILLS = 3
"""Times a step draws further tasks for groups that taught nothing."""


def run(config: ReinforceConfig, verifier: Verifier | None = None) -> Result:
    """Run the stage: steps, a checkpoint after each, and a model that plain transformers loads.

    Args:
        verifier: one that is open already; by default one is opened for the run.
    """
    with (
        workbench(config, verifier, config.turns) as bench,
        LiveTable(config.steps) as table,
        contextlib.closing(Learner(bench, config)) as learner,
    ):
        while not learner.finished:
            metrics = one_step(learner)
            bench.record(metrics, learner.step)
            table.add(metrics)
            if learner.step % config.save_every == 0 or learner.finished:
                bench.directory.checkpoint(learner.step, learner.save)
        final = commit_checkpoint(config.output, "model", lambda folder: save_final(bench.policy, folder, bench.history))
        history = bench.history
        results = {"steps": learner.step, "seconds": learner.seconds, "model": str(final), "last": history[-1]}
        bench.directory.write_results(results)
    return Result(results, final_table(history, f"model: {final}"))


def one_step(learner: Learner) -> dict[str, Any]:
    """Sample, verify, compare, update: returns the step's metrics."""
    started = time.perf_counter()
    bench, config, step = learner.bench, learner.config, learner.step + 1
    collected = learner.ahead.take(step) if learner.ahead else collect_groups(learner, step)
    require_judged(collected.attempts)
    examples, logprobs = training_examples(bench, config, collected)

    update_started = time.perf_counter()
    update: dict[str, float] = {}
    # candidates of the step ahead may be under way: no clock may run beside an update
    with bench.collector.verifier.untimed() if learner.ahead else contextlib.nullcontext():
        if examples:
            rows = list(pack_rollouts(examples, logprobs, row_tokens=bench.row_tokens, pad_id=bench.pad_id))
            update = learner.update(rows)
        bench.collector.engine.sync(bench.policy.model.named_parameters, step)
    now = time.perf_counter()

    metrics = step_metrics(collected, learner.first_length)
    learner.finish_step(step, metrics["length"], now - started)
    phases = {**collected.seconds, "update": now - update_started, "step": now - started}
    staleness = fmean(step - 1 - attempt.rollout.version for attempt in collected.attempts)
    learnt = {"staleness": staleness, "learnt": len(examples), "learnt_tokens": sum(len(e.completion_ids) for e in examples)}
    speed = {"attempts_per_s": len(collected.attempts) / phases["step"], **bench.gpu_time(learner.seconds)}
    return {"step": step, **metrics, **learnt, **update, "seconds": phases, **speed}


def collect_groups(learner: Learner, step: int) -> Collected:
    """The step's attempts. Under `refill`, groups that taught nothing are made up for by further tasks."""
    bench, config = learner.bench, learner.config
    bench.collector.on_attempt = lambda attempt: bench.directory.add_sample(sample_row(attempt, step))
    collected, missing, groups = Collected(), config.tasks_per_step, 0
    for draw in range(1 + REFILLS):
        numbers = learner.order.draw(missing)
        seed = (config.seed, step, draw)
        more = bench.collector.collect([bench.tasks[n] for n in numbers], seed, first_group=groups)
        first_turns = [group for group in more.groups() if group[0].turn == 1]
        rates = zip(numbers, pass_rates(first_turns), strict=True)
        learner.order.record({number: rate for number, rate in rates if rate is not None})
        collected.extend(more)
        groups += len(numbers)
        missing = sum(is_constant([a.reward.value if a.reward else None for a in group]) for group in first_turns)
        if config.constant_groups != "refill" or missing == 0:
            break
    return collected


def training_examples(
    bench: Bench, config: ReinforceConfig, collected: Collected
) -> tuple[list[Example], list[list[float] | None]]:
    """What is learnt from: prompt and sampled tokens of each attempt, its advantage as weight, and its log-probs."""
    returns: dict[tuple[int, int, int], float] = {}
    for trajectory in collected.trajectories():
        known = [a for a in trajectory if a.reward is not None]
        earned = discounted_returns([a.reward.value for a in known if a.reward], config.gamma)
        returns |= {a.order: value for a, value in zip(known, earned, strict=True)}

    groups = collected.groups()
    advantages = advantages_of_groups([[returns.get(a.order) for a in group] for group in groups], config.advantage)
    examples, logprobs = [], []
    for group, values in zip(groups, advantages, strict=True):
        if config.constant_groups != "keep" and not values.any():
            continue  # nothing to learn, and its tokens would only dilute the mean
        for attempt, advantage in zip(group, values.tolist(), strict=True):
            if attempt.order in returns and bench.fits(attempt):
                examples.append(Example(attempt.prompt_ids, attempt.rollout.token_ids, advantage))
                logprobs.append(attempt.rollout.logprobs)
    return examples, logprobs


class Learner:
    """The policy being improved: its optimizer, the reference it is held to, and the position in the run."""

    def __init__(self, bench: Bench, config: ReinforceConfig):
        self.bench, self.config = bench, config
        self.step = 0
        self.seconds = 0.0
        """Wall time of all steps, over every resume."""
        self.first_length: float | None = None
        """Mean length in tokens of the first step's rollouts."""
        self.order = TaskOrder(len(bench.tasks), config.seed, config.curriculum)
        self.trainable = [p for p in bench.policy.model.parameters() if p.requires_grad]
        on_gpu = bench.accelerator.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.trainable, lr=config.learning_rate, weight_decay=0.0, fused=on_gpu)
        self.reference = self._load_reference()
        self.ahead = OneAhead(bench, config, self.order, self.rollout_logprobs) if config.overlap else None
        if bench.checkpoint:
            self._restore(bench.checkpoint)

    @property
    def finished(self) -> bool:
        """Whether the run has taken its steps, or its time."""
        return self.step >= self.config.steps or self.seconds >= (self.config.time_limit_s or math.inf)

    def update(self, rows: list[LossRow]) -> dict[str, float]:
        """Optimizer steps on a step's rows; returns the loss's metrics, as means over all tokens and updates."""
        config = self.config
        rows = [self._to_device(row) for row in rows]
        for row in rows:
            if config.beta:
                row.ref_logprobs = self._logprobs(self.reference, row)
            if config.epochs * config.updates_per_epoch > 1:
                row.old_logprobs = self._logprobs(self.bench.policy, row)
        share = -(-len(rows) // config.updates_per_epoch)
        chunks = [rows[start : start + share] for start in range(0, len(rows), share)] * config.epochs
        totals: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.bench.accelerator.device))
        self.bench.policy.model.train()
        for chunk in chunks:
            num_tokens = sum(row.row.num_targets for row in chunk)
            num_sequences = sum(row.num_sequences for row in chunk)
            for row in chunk:
                loss, metrics = self._loss(row, num_tokens, num_sequences)
                loss.backward()
                totals["loss"] += loss.detach() / len(chunks)
                totals["ratio_max"] = torch.maximum(totals["ratio_max"], metrics["ratio_max"])
                for name in metrics.keys() & set(AVERAGED):
                    totals[name] += metrics[name] * (row.row.num_targets / num_tokens / len(chunks))
            totals["grad_norm"] += torch.nn.utils.clip_grad_norm_(self.trainable, config.max_grad_norm) / len(chunks)
            self.optimizer.step()
            self.optimizer.zero_grad()
        check_ids()
        if not config.beta:
            totals.pop("kl_ref", None)
        return {name: value.item() for name, value in totals.items()}

    def finish_step(self, step: int, length: float, seconds: float) -> None:
        """Move on: what is saved from here on belongs to the next step."""
        self.step = step
        self.seconds += seconds
        self.first_length = self.first_length or length

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and position."""
        self.bench.policy.model.save_pretrained(folder)
        self.bench.policy.tokenizer.save_pretrained(folder)
        torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
        order = {"drawn": self.order.drawn, "pass_rates": self.order.pass_rates}
        state = {"step": self.step, "seconds": self.seconds, "first_length": self.first_length, "order": order}
        write_json(folder / "reinforce_state.json", state | {"ahead": self.ahead and self.ahead.state()})

    def _restore(self, folder: Path) -> None:
        """Go on from what `save` wrote (the policy's weights were loaded from the same folder)."""
        self.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
        state = read_json(folder / "reinforce_state.json")
        self.step, self.seconds, self.first_length = state["step"], state["seconds"], state["first_length"]
        self.order.drawn = state["order"]["drawn"]
        self.order.pass_rates = {int(task): rate for task, rate in state["order"]["pass_rates"].items()}
        self.bench.collector.engine.sync(self.bench.policy.model.named_parameters, self.step)
        if self.ahead:
            self.ahead.restore(state.get("ahead"))

    def close(self) -> None:
        """Leave what is sampled ahead."""
        if self.ahead:
            self.ahead.close()

    def rollout_logprobs(self, examples: Sequence[Example]) -> list[list[float]]:
        """Log-probs of each example's sampled tokens under the policy as it is; none for one that fits no row."""
        bench = self.bench
        fits = [len(e.prompt_ids) + len(e.completion_ids) <= bench.row_tokens for e in examples]
        fitting = [e for e, fit in zip(examples, fits, strict=True) if fit]
        rows = pack_rollouts(fitting, [None] * len(fitting), row_tokens=bench.row_tokens, pad_id=bench.pad_id)
        found = chain.from_iterable(
            self._logprobs(bench.policy, self._to_device(r))[r.mask.nonzero()[:, 0]].tolist() for r in rows
        )
        return [list(islice(found, len(e.completion_ids))) if fit else [] for e, fit in zip(examples, fits, strict=True)]

    def _loss(self, row: LossRow, num_tokens: int, num_sequences: int) -> tuple[Tensor, dict[str, Tensor]]:
        """This row's share of the loss, which is normalised over the whole update; and its metrics."""
        config = self.config
        hidden, weight = self._hidden_and_head(self.bench.policy, row)
        loss, metrics = linear_grpo_loss(
            hidden,
            weight,
            row.row.targets,
            advantages=row.row.weights,
            old_logprobs=row.old_logprobs,
            ref_logprobs=row.ref_logprobs,
            rollout_logprobs=row.rollout_logprobs,
            mask=row.mask,
            cu_seqlens=row.row.cu_seqlens,
            temperature=config.temperature,
            loss_type=config.loss,
            epsilon_low=config.epsilon_low,
            epsilon_high=config.epsilon_high,
            delta=config.delta,
            beta=config.beta,
            kl_estimator=config.kl_estimator,
            correction=config.correction if row.rollout_logprobs is not None else "none",
            correction_max=config.correction_max,
            correction_min=config.correction_min,
            entropy_coef=config.entropy_coef,
            num_tokens=num_tokens,
            num_sequences=num_sequences,
            max_tokens=config.max_tokens,
        )
        if row.rollout_logprobs is None:
            return loss, metrics
        old = row.old_logprobs
        if old is None:
            with torch.no_grad():
                old = self._chosen(hidden, weight, row)
        return loss, metrics | {"mismatch_kl": mismatch_kl(old, row.rollout_logprobs, row.mask)}

    @torch.no_grad()
    def _logprobs(self, policy: Policy | None, row: LossRow) -> Tensor:
        """Log-probs of the row's sampled tokens under the policy as it is, or under the reference; float32 [N]."""
        mine: Any = self.bench.policy.model
        held_off = mine.disable_adapter() if policy is None else contextlib.nullcontext()
        with held_off:
            hidden, weight = self._hidden_and_head(policy or self.bench.policy, row)
        return self._chosen(hidden, weight, row)

    def _chosen(self, hidden: Tensor, weight: Tensor, row: LossRow) -> Tensor:
        """Log-probs of the row's sampled tokens; float32 [N], 0 elsewhere."""
        temperature = self.config.temperature
        return token_logprobs(hidden, row.row.targets, temperature=temperature, lm_head_weight=weight, mask=row.mask)[0]

    def _hidden_and_head(self, policy: Policy, row: LossRow) -> tuple[Tensor, Tensor]:
        """Hidden states [N, H] of a packed row, and the head's weight [V, H]."""
        extra = packed_kwargs(row.row.position_ids, row.row.cu_seqlens, row.max_seqlen)
        with self.bench.accelerator.autocast():
            hidden = policy.base(input_ids=row.row.input_ids, **extra).last_hidden_state[0]
        return hidden.to(self.bench.loss_dtype), policy.head_weight.to(self.bench.loss_dtype)

    def _load_reference(self) -> Policy | None:
        """The starting model, frozen. Under LoRA it is the policy with its adapters off, and None stands for it."""
        if not self.config.beta or self.config.lora:
            return None
        dtype = "bf16" if self.bench.accelerator.device.type == "cuda" else "fp32"
        reference = load_policy(self.config.model, dtype=dtype, revision=self.config.revision)
        reference.model.requires_grad_(False).eval().to(self.bench.accelerator.device)  # pyright: ignore
        return reference

    def _to_device(self, row: LossRow) -> LossRow:
        device = self.bench.accelerator.device
        noted = row.rollout_logprobs
        return LossRow(row.row.to(device), row.max_seqlen, row.num_sequences, None if noted is None else noted.to(device))
