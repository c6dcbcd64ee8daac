"""Asking before a run that samples more than anybody is likely to mean."""

from __future__ import annotations

import sys

from kernrl.console import log
from kernrl.errors import UsageError
from kernrl.settings import ConfigT

MOST_SAMPLES = 256
"""Candidates a task that are not asked about."""

MOST_REPLIES = 50_000
"""Replies at a time, all tasks together, that are not asked about."""


def confirm_samples(samples: int, tasks: int, *, yes: bool, what: str = "") -> None:
    """Ask on the terminal whether so many candidates are meant; without a terminal, refuse.

    Args:
        samples: candidates a task.
        tasks: asked at a time.
        what: such as ` a step`.

    Raises:
        UsageError: the answer is no, or nobody can be asked.
    """
    if not yes and (samples > MOST_SAMPLES or samples * tasks > MOST_REPLIES):
        ask(f"--samples {samples} asks for {samples * tasks:,} replies{what}")


def confirmed(config: ConfigT) -> ConfigT:
    """The config of a command that samples, as it is when many samples a task were meant: with `--yes`.

    This asks before tasks are read, so how many there are is known only where a step or round has so many.

    Raises:
        UsageError: the answer is no, or nobody can be asked.
    """
    samples, tasks = getattr(config, "samples", 0), getattr(config, "tasks_per_step", getattr(config, "tasks_per_round", 0))
    if getattr(config, "yes", True) or (samples <= MOST_SAMPLES and samples * tasks <= MOST_REPLIES):
        return config
    ask(f"--samples {samples} asks for {samples * (tasks or 1):,} replies {'at a time' if tasks else 'a task'}")
    return config.model_copy(update={"yes": True})


def ask(size: str) -> None:
    if not (sys.stdin and sys.stdin.isatty() and log.is_terminal and not log.quiet):
        raise UsageError(f"{size}: give fewer, or confirm with --yes.")
    answer = log.input(f"{size}. Go on? [y/N] ")
    if answer.strip().lower() not in ("y", "yes"):
        raise UsageError(f"{size}: give fewer.")
