"""Where candidates come from besides variants: worked styles, a model's samples, and files on disk."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from kernrl.config import EvalConfig, OptimizeConfig
from kernrl.console import log
from kernrl.optimization.trials import Proposal
from kernrl.optimization.words import rates_of
from kernrl.reports.kernelbench import read_candidates
from kernrl.tasks.solutions.from_graph.plausible import plausible
from kernrl.tasks.solutions.from_graph.styles import STYLES, graphs_of, write_solutions
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import Device
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.verdict import Rejection

ORDERED_NODES = 100
"""Graphs of more nodes have their styles tried as they come: the order costs as much as writing them, which takes seconds."""


def styles(task: Task, device: Device, precision: str) -> list[Proposal]:
    """The worked solutions of a task, those that should be fast on the device first; none where no rule writes one.

    Raises:
        LiftError: The task cannot be lifted.
    """
    graphs = graphs_of(task)
    promising = []
    if len(graphs[0].nodes) <= ORDERED_NODES:
        found = plausible(graphs, rates_of(device, precision), precision=precision, within=inf)
        promising = [style for style, _ in found]
    rest = [style for style in STYLES if style not in promising]
    return [Proposal(s.triton_code, "style", s.style) for s in write_solutions(task, [*promising, *rest])]


def given(task: Task) -> list[Proposal]:
    """The solutions that came with the task."""
    return [Proposal(s.triton_code, "disk", s.style) for s in task.solutions]


def from_disk(folder: Path, tasks: Sequence[Task]) -> dict[str, list[Proposal]]:
    """Task id → its candidates under a folder; raises UsageError where there are none at all."""
    found, problems = read_candidates(folder, tasks)
    for problem in problems:
        log.print(f"Skipped: {problem}", markup=False, highlight=False, soft_wrap=True)
    proposals: dict[str, list[Proposal]] = {}
    for task, sample, text in found:
        parsed = parse_reply(text)
        if not isinstance(parsed, Rejection):
            proposals.setdefault(task.id, []).append(Proposal(parsed.source, "disk", f"{folder.name}, sample {sample}"))
    return proposals


class Model:
    """A model that is asked for candidates. It is loaded once, for all tasks."""

    def __init__(self, config: OptimizeConfig, verifier: Any):
        from kernrl.training.evaluation import open_model

        settings = {
            name: getattr(config, name) for name in ("model", "revision", "prompt", "engine", "temperature", "max_tokens")
        }
        settings |= {name: getattr(config, name) for name in ("server_url", "server_model", "server_timeout_s")}
        self.name, self.seed = config.model, config.seed
        self.engine, self.collector = open_model(EvalConfig(**settings, verifier=config.judging, samples=1), verifier)

    def sample(self, task: Task, count: int) -> Sampled:
        """Start to sample that many candidates for a task."""
        return Sampled(self, task, count)

    def close(self) -> None:
        """Release what the engine holds."""
        self.engine.close()


class Sampled:
    """Candidates that a model samples in a thread, while others are judged."""

    def __init__(self, model: Model, task: Task, count: int):
        self._model, self._task, self._count = model, task, count
        self._replies: queue.SimpleQueue[Proposal] = queue.SimpleQueue()
        self._come = 0
        self._stopped = threading.Event()
        self.failed: Exception | None = None
        """Why sampling ended early."""
        self._thread = threading.Thread(target=self._sample, name="sampling", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        collector = self._model.collector
        try:
            questions = collector.questions([self._task])
            sampling = replace(collector.sampling, n=self._count, seed=self._model.seed)
            rollouts = self._model.engine.generate([q.prompt_ids for q in questions], sampling)
            with closing(rollouts):
                for number, rollout in enumerate(rollouts):
                    if self._stopped.is_set():
                        return
                    ids = rollout.token_ids[:-1] if rollout.finish == "stop" else rollout.token_ids
                    parsed = parse_reply(str(collector.tokenizer.decode(ids, clean_up_tokenization_spaces=False)))
                    if not isinstance(parsed, Rejection):
                        self._replies.put(Proposal(parsed.source, "model", f"sample {number} of {self._model.name}"))
                    self._come += 1
        except Exception as error:  # a server that is gone ends the samples, and not the search
            self.failed = error

    def poll(self) -> Proposal | None:
        """The next candidate, None where there is none yet."""
        try:
            return self._replies.get_nowait()
        except queue.Empty:
            return None

    @property
    def done(self) -> bool:
        """Whether no more will come."""
        return not self._thread.is_alive() and self._replies.empty()

    @property
    def left(self) -> int:
        """How many may still come."""
        return self._count - self._come

    def stop(self) -> None:
        """Sample no more, as soon as the current batch allows."""
        self._stopped.set()
