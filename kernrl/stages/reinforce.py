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
from kernrl.algorithms.returns import advantages_of_groups, discounted_returns, is_constant
from kernrl.config import ReinforceConfig
from kernrl.console import Result
from kernrl.kernels import check_ids
from kernrl.policy.checkpoint import read_json, write_json
from kernrl.policy.load import load_policy
from kernrl.policy.packing import Example
from kernrl.policy.parallel import accumulating, clip_gradients, load_optimizer, save_training, spread
from kernrl.rollouts.batch import LossRow, pack_rollouts
from kernrl.rollouts.collect import Collected, Verifier
from kernrl.rollouts.metrics import step_metrics
from kernrl.runs.interrupt import StopAfterStep
from kernrl.runs.progress import LiveTable, final_table
from kernrl.training.overlap import OneAhead
from kernrl.training.row_loss import RowLoss
from kernrl.training.workbench import Bench, pass_rates, require_judged, sample_row, workbench

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
        StopAfterStep(bench.ranks) as stop,
    ):
        while not learner.finished:
            metrics = one_step(learner)
            bench.record(metrics, learner.step)
            table.add(metrics)
            stopping = stop.wanted()
            if stopping or learner.step % config.save_every == 0 or learner.finished:
                bench.directory.checkpoint(learner.step, learner.save, bench.ranks)
            if stopping:
                raise KeyboardInterrupt
        results, history = bench.finish({"steps": learner.step, "seconds": learner.seconds})
    return Result(results, final_table(history, f"model: {results['model']}"))


def one_step(learner: Learner) -> dict[str, Any]:
    """Sample, verify, compare, update: returns the step's metrics."""
    started = time.perf_counter()
    bench, config, step = learner.bench, learner.config, learner.step + 1

    def sampled() -> tuple[list[Example], list[list[float] | None], dict[str, Any], dict[str, float]]:
        collected = learner.ahead.take(step) if learner.ahead else collect_groups(learner, step)
        require_judged(collected.attempts)
        metrics = step_metrics(collected, learner.first_length, learner.most_correct)
        metrics["staleness"] = fmean(step - 1 - attempt.rollout.version for attempt in collected.attempts)
        return *training_examples(bench, config, collected), metrics, dict(collected.seconds)

    examples, logprobs, metrics, phases = bench.lead(sampled)

    update_started = time.perf_counter()
    update: dict[str, float] = {}
    # candidates of the step ahead may be under way: no clock may run beside an update
    with bench.collector.verifier.untimed() if learner.ahead else contextlib.nullcontext():
        if examples:
            rows = list(pack_rollouts(examples, logprobs, row_tokens=bench.row_tokens, pad_id=bench.pad_id))
            update = learner.update(rows)
        bench.sync(step)
    now = time.perf_counter()

    phases |= {"update": now - update_started, "step": now - started}
    learner.finish_step(step, metrics, bench.ranks.tell(phases["step"]))
    learnt = {"learnt": len(examples), "learnt_tokens": sum(len(e.completion_ids) for e in examples)}
    speed = {"attempts_per_s": metrics["attempts"] / phases["step"], **bench.gpu_time(learner.seconds)}
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
        self.most_correct: float | None = None
        """The greatest share of correct attempts of any step."""
        self.order = TaskOrder(len(bench.tasks), config.seed, config.curriculum)
        self.own_loss = RowLoss(bench.policy, config, bench.ranks)
        """For what one rank does alone, where `loss` is for all of them together."""
        self.loss = spread(bench.ranks, self.own_loss, bench.policy)
        self.trainable = [p for p in bench.policy.model.parameters() if p.requires_grad]
        on_gpu = bench.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.trainable, lr=config.learning_rate, eps=config.adam_epsilon, weight_decay=0.0, fused=on_gpu
        )
        self.reference = self._load_reference()
        ahead = config.overlap and bench.ranks.leads
        self.ahead = OneAhead(bench, config, self.order, self.rollout_logprobs) if ahead else None
        if bench.checkpoint:
            self._restore(bench.checkpoint)

    @property
    def finished(self) -> bool:
        """Whether the run has taken its steps, or its time."""
        return self.step >= self.config.steps or self.seconds >= (self.config.time_limit_s or math.inf)

    @property
    def learning_rate(self) -> float:
        """Of the step in flight: a linear warm-up, then constant."""
        return self.config.learning_rate * min(1.0, (self.step + 1) / (self.config.warmup_steps + 1))

    def update(self, rows: list[LossRow]) -> dict[str, float]:
        """Optimizer steps on a step's rows; returns the loss's metrics, as means over all tokens and updates.

        Every rank is given all rows, and works on its share of each update's.
        """
        config, ranks = self.config, self.bench.ranks
        share = -(-len(rows) // config.updates_per_epoch)
        chunks = [rows[start : start + share] for start in range(0, len(rows), share)]
        mine = [self._dealt(chunk) for chunk in chunks]
        for row in chain(*mine):
            if config.beta:
                row.ref_logprobs = self._reference_logprobs(row)
            if config.epochs * config.updates_per_epoch > 1:
                row.old_logprobs = self._logprobs(self.loss, row)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate
        updates = len(chunks) * config.epochs
        totals: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.bench.device))
        self.bench.policy.model.train()
        for chunk, dealt in list(zip(chunks, mine, strict=True)) * config.epochs:
            num_tokens = sum(row.row.num_targets for row in chunk)
            num_sequences = sum(row.num_sequences for row in chunk)
            for number, row in enumerate(dealt, start=1):
                with accumulating(self.loss, last=number == len(dealt)):
                    loss, metrics = self.loss(row, num_tokens, num_sequences)
                    (loss * ranks.size).backward()  # gradients are averaged over ranks
                totals["loss"] += loss.detach() / updates
                for name in metrics.keys() & set(AVERAGED):
                    totals[name] += metrics[name] * (row.row.num_targets / num_tokens / updates)
                if "ratio_max" in metrics:
                    totals["ratio_max"] = torch.maximum(totals["ratio_max"], metrics["ratio_max"])
            totals["grad_norm"] += clip_gradients(self.trainable, config.max_grad_norm) / updates
            self.optimizer.step()
            self.optimizer.zero_grad()
        check_ids()
        if not config.beta:
            totals.pop("kl_ref", None)
        return self._over_ranks(totals) | {"learning_rate": self.learning_rate}

    def _dealt(self, chunk: list[LossRow]) -> list[LossRow]:
        """This rank's rows of an update, on its device; as many as the others', since all must run equally often."""
        ranks = self.bench.ranks
        idle = [chunk[-1].idle() for _ in range(-len(chunk) % ranks.size)]
        return [row.to(self.bench.device) for row in [*chunk, *idle][ranks.index :: ranks.size]]

    def _over_ranks(self, totals: dict[str, Tensor]) -> dict[str, float]:
        """Shares of means added up; what is alike on all ranks, or a maximum, is left so."""
        if self.bench.ranks.size == 1:
            return {name: value.item() for name, value in totals.items()}
        alike = {"grad_norm", "ratio_max"}
        names = self.bench.ranks.tell(sorted(totals))  # rank 0 never idles, so it has seen them all
        sums = self.bench.ranks.sum(torch.stack([totals[n] if n not in alike else totals[n] * 0 for n in names]))
        most = self.bench.ranks.max(torch.stack([totals[n] for n in names]))
        values = zip(names, sums.tolist(), most.tolist(), strict=True)
        return {name: highest if name in alike else total for name, total, highest in values}

    def finish_step(self, step: int, metrics: dict[str, Any], seconds: float) -> None:
        """Move on: what is saved from here on belongs to the next step."""
        self.step = step
        self.seconds += seconds
        self.first_length = self.first_length or metrics["length"]
        self.most_correct = max(filter(None, (self.most_correct, metrics["correct"])), default=None)

    def save(self, folder: Path) -> None:
        """Write weights, optimizer and position; every rank calls this."""
        save_training(self.bench.ranks, self.bench.policy, self.optimizer, folder)
        if not self.bench.ranks.leads:
            return
        order = {"drawn": self.order.drawn, "pass_rates": self.order.pass_rates}
        seen = {"first_length": self.first_length, "most_correct": self.most_correct}
        state = {"step": self.step, "seconds": self.seconds, **seen, "order": order}
        write_json(folder / "reinforce_state.json", state | {"ahead": self.ahead and self.ahead.state()})

    def _restore(self, folder: Path) -> None:
        """Go on from what `save` wrote (the policy's weights were loaded from the same folder)."""
        load_optimizer(self.bench.ranks, self.bench.policy, self.optimizer, folder)
        state = read_json(folder / "reinforce_state.json")
        self.step, self.seconds = state["step"], state["seconds"]
        self.first_length, self.most_correct = state["first_length"], state.get("most_correct")
        self.order.drawn = state["order"]["drawn"]
        self.order.pass_rates = {int(task): rate for task, rate in state["order"]["pass_rates"].items()}
        self.bench.sync(self.step)
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
            self._logprobs(self.own_loss, r.to(bench.device))[r.mask.nonzero()[:, 0]].tolist() for r in rows
        )
        return [list(islice(found, len(e.completion_ids))) if fit else [] for e, fit in zip(examples, fits, strict=True)]

    @torch.no_grad()
    def _logprobs(self, loss: torch.nn.Module, row: LossRow) -> Tensor:
        """Log-probs of the row's sampled tokens under a policy as it is now; float32 [N], 0 elsewhere."""
        return loss(row)

    def _reference_logprobs(self, row: LossRow) -> Tensor:
        """The same under the reference. Under LoRA it is the policy with its adapters off."""
        if self.reference is not None:
            return self._logprobs(self.reference, row)
        model: Any = self.bench.policy.model
        with model.disable_adapter():
            return self._logprobs(self.loss, row)

    def _load_reference(self) -> RowLoss | None:
        """The starting model, frozen and whole on every rank; None where there is none, or LoRA has it."""
        if not self.config.beta or self.config.lora:
            return None
        dtype = "bf16" if self.bench.device.type == "cuda" else "fp32"
        reference = load_policy(self.config.model, dtype=dtype, revision=self.config.revision)
        reference.model.requires_grad_(False).eval().to(self.bench.device)  # pyright: ignore
        return RowLoss(reference, self.config, self.bench.ranks)
