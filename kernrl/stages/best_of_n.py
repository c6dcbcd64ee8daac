"""`kernrl best-of-n`: sample N candidates a task, keep the best that are correct, fine-tune on them; in several rounds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from kernrl.algorithms.curriculum import TaskOrder
from kernrl.config import BestOfNConfig
from kernrl.console import Result
from kernrl.policy.packing import Example
from kernrl.rollouts.collect import Attempt, Verifier
from kernrl.rollouts.metrics import step_metrics
from kernrl.stages.improve import Bench, best_first, workbench
from kernrl.stages.live import LiveTable, final_table
from kernrl.stages.tune import fine_tune, sample_and_judge, save_policy, write_dataset


def run(config: BestOfNConfig, verifier: Verifier | None = None) -> Result:
    """Run the stage: rounds, the kept candidates of each as a dataset, and a model that plain transformers loads.

    Args:
        verifier: one that is open already; by default one is opened for the run.
    """
    with workbench(config, verifier) as bench, LiveTable(config.rounds) as table:
        done = int(bench.checkpoint.name.removeprefix("step_")) if bench.checkpoint else 0
        for number in range(done + 1, config.rounds + 1):
            metrics = one_round(bench, config, number)
            bench.record(metrics, number)
            table.add(metrics)
            bench.directory.checkpoint(number, lambda folder: save_policy(bench, folder), bench.ranks)
        results, history = bench.finish({"rounds": config.rounds})
    return Result(results, final_table(history, f"model: {results['model']}"))


def one_round(bench: Bench, config: BestOfNConfig, number: int) -> dict[str, Any]:
    """Sample, verify, keep, fine-tune: returns the round's metrics."""
    started = time.perf_counter()
    size = config.tasks_per_round
    # each round goes on where the one before stopped, so that it does not learn its own answers by heart
    order = TaskOrder(len(bench.tasks), config.seed, drawn=(number - 1) * size)

    def sampled() -> tuple[list[Example], dict[str, Any], dict[str, float]]:
        collected = sample_and_judge(bench, [bench.tasks[n] for n in order.draw(size)], (config.seed, number), number)
        kept = [a for group in collected.groups() for a in keep_best(bench, group, config.keep, config.threshold)]
        write_dataset(bench.directory.path / f"kept_{number}.jsonl", kept)
        return [Example(a.prompt_ids, a.rollout.token_ids) for a in kept], step_metrics(collected), dict(collected.seconds)

    examples, metrics, seconds = bench.lead(sampled)
    tuned: dict[str, Any] = {"learnt": 0, "update_s": 0.0}
    if examples:
        tuned = fine_tune(bench, config, examples, config.seed + number)
        if number < config.rounds:
            bench.sync(number)
    seconds |= {"update": tuned.pop("update_s"), "step": time.perf_counter() - started}
    spent = sum(line["seconds"]["step"] for line in bench.directory.history if line["step"] < number) + seconds["step"]
    return {"step": number, **metrics, **tuned, "seconds": seconds, **bench.gpu_time(spent)}


def keep_best(bench: Bench, group: Sequence[Attempt], keep: int, threshold: float) -> list[Attempt]:
    """The best distinct candidates of a group: correct, whole, and worth at least `threshold`."""
    distinct: dict[str, Attempt] = {}
    for attempt in best_first(list(group)):
        worth = attempt.reward is not None and attempt.reward.value >= threshold
        if worth and attempt.verdict.correct and attempt.rollout.finish == "stop" and bench.fits(attempt):
            distinct.setdefault(attempt.key, attempt)
    return list(distinct.values())[:keep]
