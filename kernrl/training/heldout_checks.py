"""Evaluations on held-out tasks while a model trains, with the sampler and the verifier that the training has open."""

from __future__ import annotations

import hashlib
import time
from dataclasses import replace
from typing import Any

from kernrl.config.shared.heldout_checks import CheckedConfig
from kernrl.errors import UsageError
from kernrl.rollouts.step_metrics import step_metrics
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.task import Task
from kernrl.training.session import Session, sample_row

KEPT = ("reward", "correct", "fast_1", "speed_geomean_x", "modelled", "attempts", "unknown")
"""Metrics of a check: its own tasks are the same each time, so that its figures can be compared from step to step."""

STREAM = 0x4E1D
"""Word of the random stream of checks, apart from those of training steps."""


class HeldoutChecks:
    """Asks the model for candidates of held-out tasks every `--evaluate-every` steps.

    Samples go to `heldout.jsonl` of the run, figures into the step's metrics under `heldout`.

    Raises:
        UsageError: a task is also trained on, or there is none.
    """

    def __init__(self, session: Session, config: CheckedConfig):
        self._session, self._config = session, config
        self._tasks = session.ranks.lead(self._read) if config.evaluate_every else []

    def after_step(self, step: int, *, last: bool) -> dict[str, Any]:
        """`{"heldout": figures}` where a check is due, else nothing; every rank calls this."""
        every = self._config.evaluate_every
        if every is None or not (last or step % every == 0):
            return {}
        return {"heldout": self._session.lead(lambda: self._check(step))}

    def _read(self) -> list[Task]:
        tasks = load_tasks(self._config.evaluate_tasks).tasks[: self._config.evaluate_limit]
        trained = {task.id for task in self._session.tasks}
        if both := [task.id for task in tasks if task.id in trained]:
            raise UsageError(f"--evaluate-tasks: {both[0]} is trained on too; name tasks that are not in --tasks.")
        return list(tasks)

    def _check(self, step: int) -> dict[str, Any]:
        started, session, config = time.perf_counter(), self._session, self._config
        collector = replace(session.collector, sampling=replace(session.collector.sampling, n=config.evaluate_samples))
        session.watch.title = "held-out tasks"
        try:
            collected = collector.collect(
                self._tasks,
                (config.seed, STREAM),
                on_attempt=lambda attempt: session.directory.add_heldout_sample(sample_row(attempt, step)),
            )
        finally:
            session.watch.title = ""
        found = step_metrics(collected)
        figures = {name: found[name] for name in KEPT} | {"tasks": len(self._tasks), "exam": self._exam()}
        return figures | {"seconds": time.perf_counter() - started}

    def _exam(self) -> str:
        """A word for what is asked and how. A resume may change it; figures of different exams are not compared."""
        config = self._config
        sampling = (config.evaluate_samples, config.temperature, config.top_p, config.top_k, config.min_p, config.max_tokens)
        policies = sorted({config.verifier.precision or task.precision for task in self._tasks})
        # runs that were begun while fp32 was the default say None of it
        asked = (sampling, None if policies == ["fp32"] else policies, [(task.id, task.pytorch_code) for task in self._tasks])
        return hashlib.sha256(repr(asked).encode()).hexdigest()[:12]
