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
from kernrl.policy.examples import Example
from kernrl.rollouts.collect import Attempt, Collected, Verifier
from kernrl.rollouts.step_metrics import step_metrics
from kernrl.training.finetune_on_samples import SampleFinetuner, sample_and_judge, write_dataset
from kernrl.training.run_history import why_nothing
from kernrl.training.session import Session, open_session

NONE_REWARDED = "no candidate earned a reward above 0; give more --samples"

SAMPLING_SHARE = 0.8
"""Share of `--time-limit-s` that is for sampling and verdicts: learning took nano 6 to 8 % of its runs when replies had 80
tokens, and they have three times as many."""

BLOCK = 24
"""Tasks that are asked at a time under `--time-limit-s`: as many as in a step of nano's reinforce."""


def run(config: RewardWeightedConfig, verifier: Verifier | None = None) -> Result:
    """Run the stage: one round over all tasks, and a model that plain transformers loads.

    Args:
        verifier: one that is open already; by default one is opened for the run.
    """
    with open_session(config, verifier) as session, session.activity.shown():
        started = time.perf_counter()
        examples, found, seconds = session.lead(lambda: weighted_examples(session, config))
        tuned: dict[str, Any] = {"learnt": 0, "update_s": 0.0}
        if examples:
            tuned = SampleFinetuner(session, config).finetune(examples, config.seed)
        seconds |= {"update": tuned.pop("update_s"), "step": time.perf_counter() - started}
        session.record({"step": 1, **found, **tuned, "seconds": seconds, **session.gpu_time(seconds["step"])}, 1)
        if not examples:
            raise RunError(found["alarms"][-1] + ".")
        return session.finish(config, {})


def weighted_examples(session: Session, config: RewardWeightedConfig) -> tuple[list[Example], dict[str, Any], dict[str, float]]:
    """Sample and judge; returns the weighted examples, the metrics, and the seconds of each phase.

    Where no example has a weight, the last alarm of the metrics says why.
    """
    collected = sample_in_time(session, config)
    weighted = [pair for group in collected.groups() for pair in weights_of(session, group, config)]
    metrics = step_metrics(collected)
    if not weighted:
        metrics["alarms"].append(why_nothing(collected.attempts, config.max_tokens, session.fits, NONE_REWARDED))
        return [], metrics, dict(collected.seconds)
    write_dataset(session.directory.path / "weighted.jsonl", (attempt for attempt, _ in weighted))
    # weights of mean 1: the learning rate means the same whatever the scale of the reward
    mean = fmean(weight for _, weight in weighted)
    examples = [Example(a.prompt_ids, a.rollout.token_ids, weight / mean) for a, weight in weighted]
    return examples, metrics, dict(collected.seconds)


def sample_in_time(session: Session, config: RewardWeightedConfig) -> Collected:
    """Attempts at all tasks; under `--time-limit-s` at the first of them, block after block, while there is time for more."""
    tasks = session.tasks
    if config.time_limit_s is None:
        return sample_and_judge(session, tasks, (config.seed, 1), 1)
    until = time.perf_counter() + SAMPLING_SHARE * config.time_limit_s
    collected = Collected()
    for first in range(0, len(tasks), BLOCK):
        begun = time.perf_counter()
        block = sample_and_judge(session, tasks[first : first + BLOCK], (config.seed, 1, first), 1, first_group=first)
        collected.extend(block)
        now = time.perf_counter()
        if now + (now - begun) / 2 > until:  # most of a block that takes as long would come too late
            break
    return collected


def weights_of(session: Session, group: Sequence[Attempt], config: RewardWeightedConfig) -> list[tuple[Attempt, float]]:
    """The attempts of a group that are learnt, each with its weight, which is above 0.

    `reward`: the reward, and nothing below 0. `exp`: exp((r - max r) / temperature) with the maximum over the group, so that
    a group's best always counts 1: the weights of reward-weighted regression (Peters and Schaal 2007).
    """
    known = [(a, a.reward.value) for a in group if a.reward is not None and session.fits(a)]
    best = max((r for _, r in known), default=0.0)
    if config.weighting == "exp":
        return [(a, math.exp((r - best) / config.weight_temperature)) for a, r in known if best > 0]
    return [(a, r) for a, r in known if r > 0]
