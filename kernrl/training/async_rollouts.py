"""Rollouts one step ahead: a step is sampled while the candidates of the step before are verified.

A step then learns from rollouts of weights that are one update old. Nothing is sampled during an update, so samples are
still a function of seed, step and weights; rollouts that wait for their step are part of a checkpoint.
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

from kernrl.config import ReinforceConfig
from kernrl.policy.examples import Example
from kernrl.rollouts.collect import Collected, Question
from kernrl.rollouts.engines.engine import Rollout
from kernrl.training.curriculum import TaskOrder
from kernrl.training.session import Session

LogprobsOf = Callable[[Sequence[Example], int, int], list[list[float]]]
"""(examples, row tokens, pad id) → log-probs of each completion: see `PolicyLoss.logprobs_of_examples`."""


@dataclass
class _StepAhead:
    """A step that two threads work on: one samples its rollouts, the other has them verified."""

    number: int
    tasks: list[int]
    """Numbers of its tasks."""
    questions: list[Question]
    rollouts: list[Rollout] = field(default_factory=list)
    """Sampled so far, in the order in which they ended."""
    logprobs: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    """(prompt, sample) → log-probs that the engine did not give."""
    sampling: Future[None] = field(default_factory=Future)
    judging: Future[Collected] = field(default_factory=Future)
    submitted: Event = field(default_factory=Event)
    """Set when the verifier has taken all candidates, or will take no more."""


class AsyncRollouts:
    """Gives one step's attempts after another's, and has the next step sampled meanwhile.

    Args:
        order: draws the tasks, and is told how often they were solved.
        logprobs_of: for rollouts whose engine gives no log-probs.
    """

    def __init__(self, session: Session, config: ReinforceConfig, order: TaskOrder, logprobs_of: LogprobsOf):
        self._session, self._config, self._order, self._logprobs_of = session, config, order, logprobs_of
        self._threads = ThreadPoolExecutor(3, "rollouts")  # judging of a step, sampling and judging of the next
        self._next: _StepAhead | None = None
        self._closed = Event()

    def collect(self, step: int) -> Collected:
        """The step's attempts. When this returns nothing is being sampled, so the weights may change.

        In its `seconds`, `verify` is the time spent in this call; `generate` is decoding, some of it at the same time.
        """
        started = time.perf_counter()
        current = self._next or self._start(self._new_step(step), after=None)
        current.sampling.result()
        self._next = self._start(self._new_step(step + 1), after=current) if step < self._config.steps else None
        collected = current.judging.result()
        for n, attempt in enumerate(collected.attempts):
            logprobs = current.logprobs.get((attempt.rollout.prompt, attempt.rollout.sample))
            if logprobs is not None:
                collected.attempts[n] = replace(attempt, rollout=replace(attempt.rollout, logprobs=logprobs))
        self._order.record_groups(current.tasks, collected.groups())
        if self._next is not None:
            self._next.sampling.result()
            self._add_logprobs(self._next)
        collected.seconds["verify"] = time.perf_counter() - started
        return collected

    def state(self) -> dict[str, Any] | None:
        """The rollouts that wait for their step, as plain data; None where there are none."""
        if self._next is None:
            return None
        return {
            "step": self._next.number,
            "tasks": self._next.tasks,
            "rollouts": [asdict(rollout) for rollout in self._next.rollouts],
            "noted": [[*place, values] for place, values in self._next.logprobs.items()],
        }

    def restore(self, state: dict[str, Any] | None) -> None:
        """Resume from what `state` gave: rollouts whose verdicts the run does not know are verified again."""
        if state is None:
            return
        step = self._step_of(state["step"], state["tasks"])
        step.logprobs = {(prompt, sample): values for prompt, sample, values in state["noted"]}
        self._next = self._start(step, after=None, sampled=[Rollout(**row) for row in state["rollouts"]])

    def close(self) -> None:
        """Stop: no further candidate of the step ahead goes to the verifier, which may outlive this run."""
        self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _new_step(self, number: int) -> _StepAhead:
        return self._step_of(number, self._order.draw(self._config.tasks_per_step))

    def _step_of(self, number: int, tasks: list[int]) -> _StepAhead:
        return _StepAhead(number, tasks, self._session.collector.questions([self._session.tasks[n] for n in tasks]))

    def _start(self, step: _StepAhead, after: _StepAhead | None, sampled: list[Rollout] | None = None) -> _StepAhead:
        """Sample a step and have it verified, its candidates after all of `after`, which so is never held up.

        Args:
            sampled: the step's rollouts, where they were sampled before.
        """
        arriving: SimpleQueue[Rollout | None] = SimpleQueue()
        step.sampling = self._threads.submit(self._sample, step, arriving, sampled)
        step.judging = self._threads.submit(self._judge, step, arriving, after)
        # whether they end, fail or are cancelled: a thread that waits for more would keep the process from ending
        step.sampling.add_done_callback(lambda _: arriving.put(None))
        step.judging.add_done_callback(lambda _: step.submitted.set())
        return step

    def _sample(self, step: _StepAhead, arriving: SimpleQueue[Rollout | None], sampled: list[Rollout] | None) -> None:
        """Sample all of a step, whether or not the verifier has room for its candidates yet."""
        seed = (self._config.seed, step.number, 0)
        source = self._session.collector.sample(step.questions, seed) if sampled is None else (r for r in sampled)
        with closing(source):
            for rollout in source:
                step.rollouts.append(rollout)
                arriving.put(rollout)
                if self._closed.is_set():
                    return

    def _judge(self, step: _StepAhead, arriving: SimpleQueue[Rollout | None], after: _StepAhead | None) -> Collected:
        def rollouts() -> Generator[Rollout, None, None]:
            if after is not None:
                after.submitted.wait()
            while (rollout := arriving.get()) is not None and not self._closed.is_set():
                yield rollout
            step.submitted.set()

        session = self._session
        return session.collector.judge(step.questions, rollouts(), on_attempt=session.sample_writer(step.number))

    def _add_logprobs(self, step: _StepAhead) -> None:
        """Work out the log-probs that the engine did not give, while the policy is still the one that sampled."""
        missing = [r for r in step.rollouts if r.logprobs is None and r.token_ids]
        examples = [Example(step.questions[r.prompt].prompt_ids, r.token_ids) for r in missing]
        found = self._logprobs_of(examples, self._session.row_tokens, self._session.pad_id)
        step.logprobs |= {(r.prompt, r.sample): values for r, values in zip(missing, found, strict=True)}
