"""One step ahead: a step's rollouts are sampled while the candidates of the step before are verified.

A step is then learnt from rollouts of weights that are one update old. Sampling never runs beside an update, so what is
sampled stays a function of seed, step and weights; rollouts that wait for their step are part of a checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from queue import SimpleQueue
from threading import Event
from typing import Any

from kernrl.algorithms.curriculum import TaskOrder
from kernrl.config import ReinforceConfig
from kernrl.policy.packing import Example
from kernrl.rollouts.collect import Collected
from kernrl.rollouts.engines.engine import NamedTensors, Rollout, RolloutEngine, Sampling
from kernrl.training.workbench import Bench, pass_rates, sample_row

LogprobsOf = Callable[[Sequence[Example]], list[list[float]]]
"""Log-probs of the sampled tokens of each example, under the policy as it is."""


@dataclass
class Flight:
    """A step under way: its rollouts, which a thread samples and has verified."""

    step: int
    tasks: list[int]
    """Numbers of the tasks that are asked."""
    rollouts: list[Rollout] = field(default_factory=list)
    """In the order in which they ended."""
    prompts: list[list[int]] = field(default_factory=list)
    noted: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    """(prompt, sample) → log-probs that the engine did not give."""
    sampled: Event = field(default_factory=Event)
    """Set when no more is sampled."""
    whole: bool = False
    """Whether all was sampled that should be."""
    taken: Event = field(default_factory=Event)
    """Set when the verifier has taken all candidates."""
    result: Future[Collected] = field(default_factory=Future)

    def note(self, logprobs_of: LogprobsOf) -> None:
        """Work out what the engine did not give; to be called while the policy is the one that sampled."""
        missing = [r for r in self.rollouts if r.logprobs is None and r.token_ids]
        found = logprobs_of([Example(self.prompts[r.prompt], r.token_ids) for r in missing])
        self.noted |= {(r.prompt, r.sample): values for r, values in zip(missing, found, strict=True)}

    def collected(self) -> Collected:
        """Wait for the verdicts."""
        collected = self.result.result()
        for n, attempt in enumerate(collected.attempts):
            values = self.noted.get((attempt.rollout.prompt, attempt.rollout.sample))
            if values is not None:
                collected.attempts[n] = replace(attempt, rollout=replace(attempt.rollout, logprobs=values))
        return collected


class _Tap:
    """Passes an engine's rollouts on, and keeps them; or passes those on that were kept before.

    Sampling does not wait for the verifier, which takes candidates only as it has room. And a step's candidates wait until
    those of the step before have all been taken, so that a step is never held up by the next.
    """

    def __init__(self, engine: RolloutEngine, flight: Flight, kept: list[Rollout] | None, turn: Event, unwanted: Event):
        self._engine, self._flight, self._kept, self._turn, self._unwanted = engine, flight, kept, turn, unwanted

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Generator[Rollout, None, None]:
        self._flight.prompts = [list(prompt) for prompt in prompts]
        source = self._engine.generate(prompts, sampling) if self._kept is None else (r for r in self._kept)
        sampled: SimpleQueue[Rollout | None] = SimpleQueue()
        try:
            with ThreadPoolExecutor(1, "sample") as thread:
                sampling_all = thread.submit(self._sample, source, sampled)
                self._turn.wait()
                while (rollout := sampled.get()) is not None and not self._unwanted.is_set():
                    yield rollout
                sampling_all.result()
        finally:
            self._flight.taken.set()

    def _sample(self, source: Generator[Rollout, None, None], sampled: SimpleQueue[Rollout | None]) -> None:
        try:
            with closing(source):
                for rollout in source:
                    self._flight.rollouts.append(rollout)
                    sampled.put(rollout)
                    if self._unwanted.is_set():
                        return
            self._flight.whole = True
        finally:
            self._flight.sampled.set()
            sampled.put(None)

    def sync(self, named: NamedTensors, version: int) -> None:
        self._engine.sync(named, version)

    def close(self) -> None:
        """The engine is not ours."""


class OneAhead:
    """Hands out step after step, and has the next one sampled meanwhile."""

    def __init__(self, bench: Bench, config: ReinforceConfig, order: TaskOrder, logprobs_of: LogprobsOf):
        self._bench, self._config, self._order, self._logprobs_of = bench, config, order, logprobs_of
        self._threads = ThreadPoolExecutor(2, "step")
        self._next: Flight | None = None
        self._closed = Event()

    def take(self, step: int) -> Collected:
        """The step's attempts. When this returns nothing is sampled any more, so the weights may change.

        Of its seconds, `verify` is what was waited for; `generate` is decoding, which goes on beside it.
        """
        started = time.perf_counter()
        flight = self._next or self._start(Flight(step, self._draw()), after=None)
        flight.sampled.wait()
        self._next = self._start(Flight(step + 1, self._draw()), after=flight) if step < self._config.steps else None
        collected = flight.collected()
        rates = zip(flight.tasks, pass_rates(collected.groups()), strict=True)
        self._order.record({task: rate for task, rate in rates if rate is not None})
        if self._next is not None:
            self._next.sampled.wait()
            if not self._next.whole:
                self._next.result.result()  # raises what kept it from being sampled
            self._next.note(self._logprobs_of)
        collected.seconds["verify"] = time.perf_counter() - started
        return collected

    def state(self) -> dict[str, Any] | None:
        """The rollouts that wait for their step, as plain data; None where there are none."""
        if self._next is None:
            return None
        noted = [[*place, values] for place, values in self._next.noted.items()]
        return {
            "step": self._next.step,
            "tasks": self._next.tasks,
            "rollouts": [asdict(rollout) for rollout in self._next.rollouts],
            "noted": noted,
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Go on with what `state` gave: the rollouts are verified again where the run does not know their verdicts."""
        if state is None:
            return
        flight = Flight(state["step"], state["tasks"], noted={(p, s): values for p, s, values in state["noted"]})
        self._next = self._start(flight, after=None, kept=[Rollout(**row) for row in state["rollouts"]])

    def close(self) -> None:
        """Start nothing more. Of a step under way no further candidate is verified: the verifier may be another's next."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _draw(self) -> list[int]:
        return self._order.draw(self._config.tasks_per_step)

    def _start(self, flight: Flight, after: Flight | None, kept: list[Rollout] | None = None) -> Flight:
        """Sample a step and have it verified once `after` has been; `kept` are rollouts that were sampled before."""
        bench, step = self._bench, flight.step
        turn = after.taken if after else Event()
        if after is None:
            turn.set()
        collector = replace(
            bench.collector,
            engine=_Tap(bench.collector.engine, flight, kept, turn, self._closed),
            on_attempt=lambda attempt: bench.directory.add_sample(sample_row(attempt, step)),
        )
        tasks = [bench.tasks[n] for n in flight.tasks]
        flight.result = self._threads.submit(collector.collect, tasks, (self._config.seed, step, 0))
        flight.result.add_done_callback(lambda _: (flight.sampled.set(), flight.taken.set()))  # it may fail before it asks
        return flight
