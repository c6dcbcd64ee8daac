"""`kernrl best-of-n`: sample N candidates a task, keep the best correct ones, fine-tune on them; in one round or several."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from kernrl.config import BestOfNConfig
from kernrl.console import Result
from kernrl.policy.examples import Example
from kernrl.rollouts.collect import Attempt, Verifier
from kernrl.rollouts.step_metrics import step_metrics
from kernrl.runs.steps_table import LiveTable
from kernrl.training.curriculum import TaskOrder
from kernrl.training.finetune_on_samples import SampleFinetuner, sample_and_judge, save_policy, write_dataset
from kernrl.training.heldout_checks import HeldoutChecks
from kernrl.training.run_history import why_nothing
from kernrl.training.session import Session, open_session

NONE_KEPT = "no candidate earned --threshold, or under --against none was better than another of its task; give more --samples"

MARGIN = 0.03
"""Under `--against`, rewards closer than this count as equal."""


def run(config: BestOfNConfig, verifier: Verifier | None = None) -> Result:
    """Run the stage: rounds, the kept candidates of each as a dataset, and a model that plain transformers loads.

    Args:
        verifier: one that is open already; by default one is opened for the run.
    """
    limit_s = config.time_limit_s
    with (
        open_session(config, verifier) as session,
        LiveTable(None if limit_s else config.rounds, session.activity.line) as table,
    ):
        finetuner = SampleFinetuner(session, config)
        checks = HeldoutChecks(session, config)
        done = int(session.checkpoint.name.removeprefix("step_")) if session.checkpoint else 0
        session.watch.begin_steps(done, config.rounds, limit_s and limit_s - seconds_before(session, done + 1))
        for number in range(done + 1, config.rounds + 1):
            metrics = one_round(session, finetuner, config, number)
            spent = metrics["seconds"]["step"] + seconds_before(session, number)
            last = number == config.rounds or session.ranks.any(spent >= (limit_s or math.inf))
            metrics |= checks.after_step(number, last=last)
            session.record(metrics, number)
            table.add(metrics)
            best = session.best_step() if config.keep_best else None
            session.directory.checkpoint(
                number, lambda folder: save_policy(session, folder), session.ranks, keep=config.keep_checkpoints, best=best
            )
            if last:
                break
            session.give_up(config.give_up_after)
        return session.finish(config, {"rounds": session.ranks.lead(lambda: session.directory.history)[-1]["step"]})


def seconds_before(session: Session, number: int) -> float:
    """Wall time of the rounds before one, over every resume."""
    return sum(line["seconds"]["step"] for line in session.directory.history if line["step"] < number)


def one_round(session: Session, finetuner: SampleFinetuner, config: BestOfNConfig, number: int) -> dict[str, Any]:
    """Sample, verify, keep, fine-tune: returns the round's metrics."""
    started = time.perf_counter()
    size = config.tasks_per_round
    # each round asks further tasks: on tasks seen before, a model repeats the answers it was taught
    order = TaskOrder(len(session.tasks), config.seed, drawn=(number - 1) * size)

    def sampled() -> tuple[list[Example], dict[str, Any], dict[str, float]]:
        collected = sample_and_judge(session, [session.tasks[n] for n in order.draw(size)], (config.seed, number), number)
        session.know(collected.attempts)
        picked = [pick(session, config, group) for group in collected.groups()]
        kept = [a for best, _ in picked for a in best]
        write_dataset(session.directory.path / f"kept_{number}.jsonl", kept)
        examples = [Example(a.prompt_ids, a.rollout.token_ids) for a in kept]
        for best, worse in picked:
            # a task's worst weigh `against` times as much as its best, however many there are of either
            examples += [Example(a.prompt_ids, a.rollout.token_ids, -config.against * len(best) / len(worse)) for a in worse]
        found: dict[str, Any] = step_metrics(collected) | {"kept": len(kept)}
        if not examples:
            found["alarms"].append(why_nothing(collected.attempts, config.max_tokens, session.fits, NONE_KEPT))
        return examples, found, dict(collected.seconds)

    examples, metrics, seconds = session.lead(sampled)
    tuned: dict[str, Any] = {"learnt": 0, "update_s": 0.0}
    if examples:
        tuned = finetuner.finetune(examples, config.seed + number)
        if number < config.rounds or config.evaluate_every:
            session.sync_sampler(number)
    seconds |= {"update": tuned.pop("update_s"), "step": time.perf_counter() - started}
    spent = seconds_before(session, number) + seconds["step"]
    return {"step": number, **metrics, **tuned, "seconds": seconds, **session.gpu_time(spent)}


def keep_best(session: Session, group: Sequence[Attempt], keep: int, threshold: float) -> list[Attempt]:
    """The best distinct candidates of a group: correct, whole, and worth at least `threshold`."""
    distinct: dict[str, Attempt] = {}
    for attempt in best_first(group):
        worth = attempt.reward is not None and attempt.reward.value >= threshold
        if worth and attempt.verdict.correct and attempt.rollout.finish == "stop" and session.fits(attempt):
            distinct.setdefault(attempt.key, attempt)
    return list(distinct.values())[:keep]


def pick(session: Session, config: BestOfNConfig, group: Sequence[Attempt]) -> tuple[list[Attempt], list[Attempt]]:
    """The candidates to learn and, with `--against`, those to unlearn: at most `--keep-candidates` distinct ones of each.

    With `--against`, only candidates within `MARGIN` of the best are learnt, and the worst are unlearnt. What both share,
    most of their tokens, cancels, and the difference is learnt. A group without a difference gives two empty lists.
    """
    best = keep_best(session, group, config.keep_candidates, config.threshold)
    if not best or not config.against:
        return best, []
    bar = value_of(best[0]) - MARGIN
    worse: dict[str, Attempt] = {}
    for attempt in reversed(best_first(group)):
        if value_of(attempt) < bar and session.fits(attempt):
            worse.setdefault(attempt.key, attempt)
    return ([a for a in best if value_of(a) >= bar], list(worse.values())[: config.keep_candidates]) if worse else ([], [])


def best_first(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Attempts with a reward, the highest first; among equals the faster, then the shorter."""
    known = [a for a in attempts if a.reward is not None]
    return sorted(known, key=lambda a: (-value_of(a), not a.verdict.faster(), len(a.rollout.token_ids), a.order))


def value_of(attempt: Attempt) -> float:
    """The reward of an attempt that has one."""
    assert attempt.reward is not None
    return attempt.reward.value
