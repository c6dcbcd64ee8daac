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
from kernrl.runs.progress import LiveTable, final_table
from kernrl.training.tune import fine_tune, sample_and_judge, save_policy, write_dataset
from kernrl.training.workbench import Bench, best_first, value_of, workbench

MARGIN = 0.03
"""Rewards nearer to each other than this count as equal when the best of a group are set against its worst."""


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
        picked = [pick(bench, config, group) for group in collected.groups()]
        kept = [a for best, _ in picked for a in best]
        write_dataset(bench.directory.path / f"kept_{number}.jsonl", kept)
        examples = [Example(a.prompt_ids, a.rollout.token_ids) for a in kept]
        for best, worse in picked:
            # however many there are of either, a task's worst weigh `against` times what its best do
            examples += [Example(a.prompt_ids, a.rollout.token_ids, -config.against * len(best) / len(worse)) for a in worse]
        return examples, step_metrics(collected) | {"kept": len(kept)}, dict(collected.seconds)

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


def pick(bench: Bench, config: BestOfNConfig, group: Sequence[Attempt]) -> tuple[list[Attempt], list[Attempt]]:
    """What is drawn to and, with `--against`, what is pushed away: as many distinct ones at most, the worst first.

    The one is then only what is as good as the best. What both have in common, which is most of what they say, cancels, and
    what is left is the difference; a group without any teaches nothing, and both lists are empty.
    """
    best = keep_best(bench, group, config.keep, config.threshold)
    if not best or not config.against:
        return best, []
    bar = value_of(best[0]) - MARGIN
    worse: dict[str, Attempt] = {}
    for attempt in reversed(best_first(list(group))):
        if value_of(attempt) < bar and bench.fits(attempt):
            worse.setdefault(attempt.key, attempt)
    return ([a for a in best if value_of(a) >= bar], list(worse.values())[: config.keep]) if worse else ([], [])
