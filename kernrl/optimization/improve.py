"""`--improve`: the model is trained on the very tasks that are searched, and what it samples meanwhile is tried as well."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kernrl.config import BestOfNConfig, OptimizeConfig, ReinforceConfig
from kernrl.config.by_model import is_nano
from kernrl.errors import KernrlError
from kernrl.files import next_folder
from kernrl.optimization.search.budget import Budget
from kernrl.policy.checkpoint import latest_checkpoint
from kernrl.rollouts.collect import Verifier
from kernrl.runs.interrupt import TimeUp, time_limit
from kernrl.runs.run_directory import read_lines
from kernrl.tasks.rows import write_tasks
from kernrl.tasks.task import Task
from kernrl.training.run_history import learnt
from kernrl.verifier.base.verdict import Verdict

LAST_STEP_SHARE = 0.6
"""Of the time for training: no step begins after it, so that the one in hand can end."""

TASKS_AT_ONCE = 24
LEAST_SAMPLES, MOST_SAMPLES = 4, 16
"""Candidates a task and a step: several of one task have to differ, or nothing is learnt."""

SAMPLING_SHARE = 0.35
"""Of the time for training, what the first step may take to sample, as fast as the first round did."""

MANY = 1000
"""Steps; the time ends them."""

Train = Callable[[Any, Verifier], object]
"""A stage's `run`."""

Note = Callable[[Task, str, Verdict], None]


class Noted:
    """A verifier that tells of every verdict."""

    def __init__(self, verifier: Verifier, note: Note):
        self._verifier, self._note = verifier, note

    def verify_many(self, pairs: Iterable[tuple[Task, str]]) -> Iterator[tuple[int, Verdict]]:
        """See `Verifier.verify_many`."""
        taken: list[tuple[Task, str]] = []

        def kept() -> Iterator[tuple[Task, str]]:
            for pair in pairs:
                taken.append(pair)
                yield pair

        for index, verdict in self._verifier.verify_many(kept()):
            self._note(*taken[index], verdict)
            yield index, verdict

    def gpu(self) -> str:
        """See `Verifier.gpu`."""
        return self._verifier.gpu()

    def unfit(self, task: Task) -> str:
        """See `Verifier.unfit`."""
        return self._verifier.unfit(task)

    def doing(self) -> str:
        """See `Verifier.doing`."""
        return self._verifier.doing()

    def untimed(self, gpu: int | None = None) -> AbstractContextManager[None]:
        """See `Verifier.untimed`."""
        return self._verifier.untimed(gpu)


def improve(
    tasks: Sequence[Task],
    config: OptimizeConfig,
    verifier: Verifier,
    folder: Path,
    budget: Budget,
    train: Train,
    note: Note,
    replies_per_s: float | None = None,
) -> tuple[Path | None, str]:
    """Train the model on the tasks until the budget ends.

    Args:
        folder: Of the search; the training's run is made in it.
        replies_per_s: How fast the model samples, where that is known: a step that does not fit teaches nothing.
        train: The stage that trains.
        note: Told of every candidate that is judged meanwhile.

    Returns:
        The improved model's folder, None where nothing was learnt; and a sentence.
    """
    run = next_folder(folder, "improve")
    written = folder / f"{run.name}.jsonl"
    try:
        write_tasks(written, tasks)
        with time_limit(budget.left_s):
            settings = training(
                config, written, run, LAST_STEP_SHARE * budget.left_s, *step_size(len(tasks), budget, replies_per_s)
            )
            train(settings, Noted(verifier, note))
        why = reason(run) or "no candidate was better than another"
    except TimeUp:
        why = reason(run) or "the time ended in its first step; give more --budget"
    except KernrlError as error:
        why = str(error)
    model = trained(run)
    if model is None:
        return (
            None,
            f"--improve {config.improve}: nothing was learnt: {why.removeprefix('nothing could be learnt: ').rstrip('.')}.",
        )
    return model, f"--improve {config.improve}: {config.model} was trained on {len(tasks)} of these tasks."


def reason(run: Path) -> str:
    """What the last step says of why it taught nothing; '' where it says nothing."""
    alarms = [alarm for line in read_lines(run / "metrics.jsonl")[-1:] for alarm in line.get("alarms", ())]
    return alarms[0] if alarms else ""


def trained(run: Path) -> Path | None:
    """The model of a training run: what it exported, or else its newest checkpoint, where that is a whole model.

    None where no step learnt anything: then its weights are those that it started from.
    """
    if (run / "model").is_dir():
        return run / "model"
    last = latest_checkpoint(run)
    whole = last is not None and (last / "config.json").exists()
    return last if whole and any(map(learnt, read_lines(run / "metrics.jsonl"))) else None


def step_size(tasks: int, budget: Budget, replies_per_s: float | None) -> tuple[int, int]:
    """(tasks, samples of each) of a step: as many as can be sampled in time, and never fewer than can teach anything."""
    at_once = min(tasks, TASKS_AT_ONCE)
    if replies_per_s is None:
        return at_once, MOST_SAMPLES
    fit = int(SAMPLING_SHARE * budget.left_s * replies_per_s)
    at_once = min(at_once, max(1, fit // LEAST_SAMPLES))
    return at_once, min(MOST_SAMPLES, max(LEAST_SAMPLES, fit // at_once))


def training(
    config: OptimizeConfig, written: Path, run: Path, seconds: float, tasks: int, samples: int
) -> BestOfNConfig | ReinforceConfig:
    """The settings of a training stage: its own defaults, but for what the search has settled.

    Args:
        written: File of the tasks.
        seconds: No step begins after them.
        tasks: Asked in a step, each `samples` times.
    """
    common: dict[str, Any] = {
        "model": config.model,
        "revision": config.revision,
        "prompt": config.prompt,
        "tasks": str(written),
        "samples": samples,
        "temperature": config.temperature,
        "max_tokens": config.max_tokens,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "min_p": config.min_p,
        "time_limit_s": seconds,
        "seed": config.seed,
        "output": run,
        "yes": True,
        "verifier": config.judging,
        "modelled_speed": True,
    }
    if not is_nano(config.model) and importlib.util.find_spec("peft") is None:
        common["lora"] = False
    if config.improve == "best-of-n":
        return BestOfNConfig(**common, rounds=MANY, tasks_per_round=tasks)
    return ReinforceConfig(**common, steps=MANY, tasks_per_step=tasks)


def keep(model: Path, target: Path | None) -> None:
    """Move an improved model where it is wanted, and remove the weights that its training leaves behind."""
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(model, target)
    run = model.parent
    for weights in (run / "model", *run.glob("step_*")):
        shutil.rmtree(weights, ignore_errors=True)
