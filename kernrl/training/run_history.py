"""What a run has come to, from the metrics of its steps: why nothing was learnt, when to stop, which step was best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from kernrl.console import counted
from kernrl.errors import RunError
from kernrl.rollouts.collect import Attempt
from kernrl.rollouts.reward import UNKNOWN

ALARM = "nothing could be learnt"

SAME = "the candidates of each task earned the same, so none is better than another; give more --samples"


def why_nothing(attempts: Sequence[Attempt], max_tokens: int, fits: Callable[[Attempt], bool], otherwise: str = SAME) -> str:
    """The alarm of a step in which no attempt was learnt from: its reason, and a remedy where there is one.

    Args:
        fits: whether an attempt fits a packed row of the training.
        otherwise: the reason where some are correct.
    """
    judged = [a for a in attempts if a.verdict.status not in UNKNOWN]
    if attempts and all(a.rollout.finish == "error" for a in attempts):
        return f"{ALARM}: no prompt leaves room for a reply in the model's context"
    if attempts and all(a.rollout.finish == "length" for a in attempts):
        return f"{ALARM}: every reply was cut at --max-tokens {max_tokens}; give more, or another model"
    if judged and not any(fits(a) for a in judged):
        return f"{ALARM}: no reply fits a row of --row-tokens with its prompt; give more"
    if judged and not any(a.verdict.correct for a in judged):
        (status, count), *_ = Counter(str(a.verdict.status) for a in judged).most_common(1)
        found = f"none of {counted(len(judged), 'candidate')} is correct ({count} are {status})"
        return f"{ALARM}: {found}; teach the model first (kernrl sft)"
    return f"{ALARM}: {otherwise}"


def give_up(history: Sequence[dict[str, Any]], steps: int) -> None:
    """End a run that does not learn.

    Args:
        history: metrics of every step so far, over every resume.
        steps: how many in a row that learnt nothing end it; 0 never does.

    Raises:
        RunError: the last `steps` learnt nothing; the sentence gives the last one's reason.
    """
    last = history[-steps:] if steps else []
    if steps and len(last) == steps and not any(learnt(line) for line in last):
        reason = next((a for a in last[-1].get("alarms") or () if a.startswith(ALARM)), ALARM)
        in_a_row = f"{counted(steps, 'step')} in a row"
        raise RunError(f"{in_a_row} learnt nothing; in the last, {reason}. (--give-up-after 0 goes on all the same.)")


def learnt(line: dict[str, Any]) -> bool:
    """Whether a step's metrics say that something was learnt; a run older than that count is believed to have."""
    return bool(line.get("learnt", 1))


def best_step(history: Sequence[dict[str, Any]], kept: Collection[int]) -> int | None:
    """The step whose evaluation earned the highest mean reward, the first of equals; None before any.

    Only figures of the last evaluation's exam count: a resume without `--keep-best` may have changed its size.

    Args:
        kept: steps that have a checkpoint. The last step is getting one.
    """
    checks = [(line["step"], found) for line in history if (found := line.get("heldout") or {}).get("reward") is not None]
    exam = checks[-1][1].get("exam") if checks else None
    there = {*kept, *(line["step"] for line in history[-1:])}
    rewards = {step: found["reward"] for step, found in checks if found.get("exam") == exam and step in there}
    return max(rewards, key=lambda step: rewards[step]) if rewards else None
