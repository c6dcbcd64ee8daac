"""`kernrl reward-weighted`: sample once, verify, and fine-tune with each rollout's loss weighted by its reward."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from kernrl.config import RewardWeightedConfig
from kernrl.console import Result
from kernrl.errors import RunError
from kernrl.policy.packing import Example
from kernrl.rollouts.collect import Attempt, Verifier
from kernrl.rollouts.metrics import step_metrics
from kernrl.runs.progress import final_table
from kernrl.training.tune import fine_tune, sample_and_judge, write_dataset
from kernrl.training.workbench import Bench, workbench


def run(config: RewardWeightedConfig, verifier: Verifier | None = None) -> Result:
    """Run the stage: one round over all tasks, and a model that plain transformers loads.

    Args:
        verifier: one that is open already; by default one is opened for the run.
    """
    started = time.perf_counter()
    with workbench(config, verifier) as bench:
        examples, found, seconds = bench.lead(lambda: weighted_examples(bench, config))
        tuned = fine_tune(bench, config, examples, config.seed)
        seconds |= {"update": tuned.pop("update_s"), "step": time.perf_counter() - started}
        bench.record({"step": 1, **found, **tuned, "seconds": seconds, **bench.gpu_time(seconds["step"])}, 1)
        results, history = bench.finish({})
    return Result(results, final_table(history, f"model: {results['model']}"))


def weighted_examples(bench: Bench, config: RewardWeightedConfig) -> tuple[list[Example], dict[str, Any], dict[str, float]]:
    """Sample and judge: what is learnt, the metrics, and the seconds it took."""
    collected = sample_and_judge(bench, bench.tasks, (config.seed, 1), 1)
    weighted = [pair for group in collected.groups() for pair in weights_of(bench, group, config)]
    if not weighted:
        raise RunError("No rollout earned a reward above 0: fine-tune the model first (kernrl sft), or sample more.")
    write_dataset(bench.directory.path / "weighted.jsonl", (attempt for attempt, _ in weighted))
    # a mean of 1 leaves the learning rate its meaning, whatever the reward's scale
    mean = fmean(weight for _, weight in weighted)
    examples = [Example(a.prompt_ids, a.rollout.token_ids, weight / mean) for a, weight in weighted]
    return examples, step_metrics(collected), dict(collected.seconds)


def weights_of(bench: Bench, group: Sequence[Attempt], config: RewardWeightedConfig) -> list[tuple[Attempt, float]]:
    """The attempts of a group that are learnt, each with its weight, which is above 0.

    `reward`: the reward, and nothing below 0. `exp`: exp((r - max r) / temperature) with the maximum over the group, so that
    a group's best always counts 1: the weights of reward-weighted regression (Peters and Schaal 2007).
    """
    known = [(a, a.reward.value) for a in group if a.reward is not None and bench.fits(a)]
    best = max((r for _, r in known), default=0.0)
    if config.weighting == "exp":
        return [(a, math.exp((r - best) / config.weight_temperature)) for a, r in known if best > 0]
    return [(a, r) for a, r in known if r > 0]
