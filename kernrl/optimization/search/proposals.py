"""Where candidates come from besides variants: worked styles, a model's samples, and files on disk."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from kernrl.config import EvalConfig, OptimizeConfig
from kernrl.config.shared.sampling import CutsConfig
from kernrl.console import log
from kernrl.errors import UsageError
from kernrl.optimization.search.budget import TICK_S
from kernrl.optimization.search.trials import Origin, Proposal
from kernrl.reports.kernelbench import read_candidates
from kernrl.tasks.graph.graph import Graph
from kernrl.tasks.solutions.from_graph.answer import read_source
from kernrl.tasks.solutions.from_graph.lowering.sizes import CannotWriteError
from kernrl.tasks.solutions.from_graph.plausible import plausible
from kernrl.tasks.solutions.from_graph.styles import STYLES, has_channels, simplified, write_solution
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import Device
from kernrl.verifier.base.parse import parse_reply
from kernrl.verifier.base.verdict import Rejection

CUTS = tuple(CutsConfig.model_fields)

ORDERED_NODES = 100
"""Graphs of more nodes have their styles tried as they come: the order costs as much as writing them, which takes seconds."""


def styles(graphs: Sequence[Graph], task: Task, device: Device, precision: str, *, algebra: bool = True) -> Iterator[Proposal]:
    """The worked solutions of a task, those that should be fast on the device first; none where no rule writes one.

    They are written as they are asked for: a chain of hundreds of ops takes seconds a style.

    Args:
        graphs: `graphs_of(task)`.
        precision: The policy they are judged under, for which products are written.
        algebra: Also those that do fewer operations than the task asks for.
    """
    possible = [style for style in STYLES if algebra or not style.algebra]
    try:
        source = read_source(task.pytorch_code)
    except CannotWriteError:
        return
    promising = []
    if len(graphs[0].nodes) <= ORDERED_NODES:
        found = plausible(graphs, device.rates(precision), precision=precision, styles=possible, within=inf)
        promising = [style for style, _ in found]
    simple = simplified(graphs, precision) if algebra else ()
    seen: set[str] = set()
    for style in [*promising, *(style for style in possible if style not in promising)]:
        mine = simple if style.algebra else graphs
        if not mine or (style.channels_last and not has_channels(mine[0], style)):
            continue
        try:
            solution = write_solution(source, mine, style, precision)
        except CannotWriteError:
            continue
        if solution.triton_code not in seen:
            seen.add(solution.triton_code)
            yield Proposal(solution.triton_code, "style", solution.style)


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
    """A model that is asked for candidates. It is loaded once, for all tasks.

    Args:
        origin: Of its candidates.
    """

    def __init__(self, config: OptimizeConfig, verifier: Any, origin: Origin = "model"):
        from kernrl.training.evaluation import open_model

        settings = {
            name: getattr(config, name) for name in ("model", "revision", "prompt", "engine", "temperature", "max_tokens")
        }
        settings |= {name: getattr(config, name) for name in ("server_url", "server_model", "server_timeout_s", *CUTS)}
        self.name, self.seed = config.model, config.seed
        self.origin: Origin = origin
        self.here = config.engine != "server"
        """Whether it samples on this machine's GPU, where candidates are timed."""
        self.replies, self.sampling_s = 0, 0.0
        """Sampled so far, and the seconds that took."""
        self.turn, self.asking = threading.Lock(), threading.Lock()
        """One task is sampled for at a time; and what is cancelled is that task's."""
        self.engine, self.collector = open_model(EvalConfig(**settings, verifier=config.judging, samples=1), verifier)

    def sample(self, task: Task, count: int) -> Sampled:
        """Start to sample that many candidates for a task."""
        return Sampled(self, task, count)

    def close(self) -> None:
        """Release what the engine holds."""
        self.engine.close()


class Ahead:
    """Proposals that are written in a thread, while others are judged."""

    def __init__(self, proposals: Iterator[Proposal]):
        self._ready: queue.SimpleQueue[Proposal] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self.failed: Exception | None = None
        """Why writing ended early."""
        self._thread = threading.Thread(target=self._write, args=(proposals,), name="proposals", daemon=True)
        self._thread.start()

    def _write(self, proposals: Iterator[Proposal]) -> None:
        try:
            for proposal in proposals:
                self._ready.put(proposal)
                if self._stopped.is_set():
                    return
        except Exception as error:  # a server that is gone ends the samples, and not the search
            if not self._stopped.is_set():
                self.failed = error

    def poll(self) -> Proposal | None:
        """The next one, None where there is none yet."""
        try:
            return self._ready.get_nowait()
        except queue.Empty:
            return None

    @property
    def done(self) -> bool:
        """Whether no more will come."""
        return not self._thread.is_alive() and self._ready.empty()

    @property
    def left(self) -> int:
        """How many may still come, where that is known."""
        return 0

    def stop(self) -> None:
        """Write no more than the one in hand."""
        self._stopped.set()


class Sampled(Ahead):
    """Candidates that a model samples."""

    def __init__(self, model: Model, task: Task, count: int):
        self._model, self._task, self._count = model, task, count
        self._come, self._asking = 0, False
        """Replies so far, and whether the model is at it."""
        super().__init__(self._proposals())

    def _proposals(self) -> Iterator[Proposal]:
        while not self._model.turn.acquire(timeout=TICK_S):
            if self._stopped.is_set():
                return
        try:
            with self._model.asking:
                self._asking = True
            yield from self._replies()
        finally:
            with self._model.asking:
                self._asking = False
            self._model.turn.release()

    def _replies(self) -> Iterator[Proposal]:
        collector = self._model.collector
        [question] = collector.questions([self._task])
        sampling = replace(collector.sampling, n=self._count, seed=self._model.seed)
        if self._stopped.is_set():
            return
        with closing(self._model.engine.generate([question.prompt_ids], sampling)) as rollouts:
            before_s, started = self._model.sampling_s, time.perf_counter()
            for number, rollout in enumerate(rollouts):
                self._come += 1
                self._model.replies += 1
                self._model.sampling_s = before_s + time.perf_counter() - started
                if rollout.finish == "error":
                    raise UsageError(f"--model {self._model.name}: the prompt leaves no room for a reply in its context.")
                text, _, malformed = collector.read(self._task, rollout)
                parsed = parse_reply(text)
                if not malformed and not isinstance(parsed, Rejection):
                    yield Proposal(parsed.source, self._model.origin, f"sample {number} of {self._model.name}")

    @property
    def left(self) -> int:
        return self._count - self._come + self._ready.qsize()

    def stop(self) -> None:
        """Sample no more: a reply that is being decoded ends at its next token, and a request is dropped."""
        super().stop()
        with self._model.asking:
            if self._asking:
                self._model.engine.cancel()
