"""HardenedVerifier: the verifier's entry point. Verdicts are cached, stages overlap, infrastructure failures are retried."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from types import TracebackType

from kernrl.config import VerifierConfig
from kernrl.errors import UsageError
from kernrl.tasks.task import Task
from kernrl.verifier.base.parse import Candidate, parse_reply
from kernrl.verifier.base.verdict import Stage, Status, Verdict
from kernrl.verifier.cache import VerdictCache, verdict_key
from kernrl.verifier.correctness import Defences
from kernrl.verifier.funnel import StagedEvaluator
from kernrl.verifier.pool.derive_input_sets import InputSets

log = logging.getLogger(__name__)

SWITCH_S = 0.0005
"""Python's thread switch interval: the default of 5 ms would delay every step on a GPU."""

RETRIES = 1
"""Retries after an infrastructure failure; one more on a cluster, where a node may die in between."""

IN_FLIGHT = 4
"""Pairs in progress for each worker: enough to keep sandbox, compiler and GPU busy at once."""


class HardenedVerifier:
    """Judges candidates. A context manager; the processes behind it start with the first candidate.

        with HardenedVerifier() as verifier:
            verdict = verifier.verify(task, reply)

    Whatever a candidate does, the answer is a Verdict. An infrastructure failure is a verdict, too (`infra_error`, after
    retries). A task that states no input set besides the full one is judged at derived ones, too. Raises UsageError for a
    task whose reference does not run or cannot be traced, InfrastructureError if nothing can work at all.
    """

    def __init__(
        self, config: VerifierConfig | None = None, *, defences: Defences | None = None, executor: Executor | None = None
    ):
        """`executor` runs the evaluations of `verify_many`; by default threads, which wait on processes."""
        self.config = config or VerifierConfig()
        self.evaluator = StagedEvaluator(self.config, defences=defences)
        folder = self.evaluator.cache_dir
        self.input_sets = InputSets(folder, processes=max(1, self.evaluator.workers // 2))
        self._cache = VerdictCache(folder / "verdicts.sqlite" if folder else None)
        self._threads = IN_FLIGHT * self.evaluator.workers
        self._retries = RETRIES if self.config.executor == "local" else 1 + RETRIES
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))
        self._executor = executor or ThreadPoolExecutor(self._threads, thread_name_prefix="verify")
        self._running: dict[str, Future[Verdict]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def verify(self, task: Task, candidate: str) -> Verdict:
        """The verdict on one candidate: source text, or a model's whole reply."""
        return self.submit(task, candidate).result()

    def verify_many(self, pairs: Iterable[tuple[Task, str]]) -> Iterator[tuple[int, Verdict]]:
        """(position, verdict) of each pair as it completes. Pairs are taken as there is room; equal ones are judged once.

        A task whose reference does not run gives its pairs an `infra_error` with that reason.
        """
        pending: dict[Future[Verdict], list[tuple[int, Task]]] = {}
        for position, (task, candidate) in enumerate(pairs):
            pending.setdefault(self.submit(task, candidate), []).append((position, task))
            while len(pending) >= self._threads:
                yield from self._completed(pending)
        while pending:
            yield from self._completed(pending)

    def gpu(self) -> str:
        """The GPU that candidates are judged on or, without one, modelled for, as a prompt names it: `H200`."""
        return self.evaluator.gpu()

    def unfit(self, task: Task) -> str:
        """Why the GPUs here have no room for any candidate of a task, in a sentence with the bytes; '' where they have."""
        return self.evaluator.unfit(task)

    def doing(self) -> str:
        """What the GPUs are at, for a line of progress: `timing a_task, compiling a baseline of another`."""
        return self.evaluator.doing()

    @contextlib.contextmanager
    def untimed(self, gpu: int | None = None) -> Iterator[None]:
        """Within, the caller may keep a GPU of this machine busy, by its index, or all of them: candidates are traced, compiled
        and judged, but none is timed there."""
        self.evaluator.start()
        held = self.evaluator.gpus if gpu is None else self.evaluator.gpus[gpu : gpu + 1]
        with contextlib.ExitStack() as stack:
            for one in held:
                stack.enter_context(one.untimed())
            yield

    def _completed(self, pending: dict[Future[Verdict], list[tuple[int, Task]]]) -> Iterator[tuple[int, Verdict]]:
        done, _ = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            for position, task in pending.pop(future):
                try:
                    yield position, future.result()
                except UsageError as error:
                    yield position, self._unusable_task(task, error)

    def submit(self, task: Task, candidate: str, *, fresh: bool = False) -> Future[Verdict]:
        """A future of the verdict, which may raise UsageError; a candidate that is being judged is not judged twice.

        Args:
            fresh: Judge and time it on new inputs, whatever was found before.
        """
        self.evaluator.start()
        if fresh:
            return self._executor.submit(lambda: self.evaluator.evaluate(self.input_sets.complete(task), candidate))
        try:
            parsed = parse_reply(candidate)
            key = self._key(task, parsed) if isinstance(parsed, Candidate) else ""
        except Exception:  # `evaluate` meets it again, and makes it a verdict
            parsed, key = None, ""
        if not isinstance(parsed, Candidate):
            return self._executor.submit(self.evaluator.evaluate, task, candidate)
        with self._lock:
            if key in self._running:
                return self._running[key]
            future = self._running[key] = self._executor.submit(self._judged_once, key, task, parsed, candidate)
        return future

    def _judged_once(self, key: str, task: Task, parsed: Candidate, candidate: str) -> Verdict:
        """Forgets that the candidate is being judged before its verdict is known: who has seen that one may ask again."""
        try:
            return self._judge(task, parsed, candidate)
        finally:
            with self._lock:
                self._running.pop(key, None)

    def _key(self, task: Task, parsed: Candidate) -> str:
        return verdict_key(task, parsed.sha, [self.evaluator.precision_of(task), *self.evaluator.conditions])

    def _judge(self, task: Task, parsed: Candidate, candidate: str) -> Verdict:
        task = self.input_sets.complete(task)  # here, so that the caller does not wait for it
        key = self._key(task, parsed)
        cached = self._cache.get(key)
        if cached is not None:
            return replace(cached, task_id=task.id)
        verdict = self.evaluator.evaluate(task, candidate)
        for _ in range(self._retries):
            if verdict.status is not Status.INFRA_ERROR or verdict.internal_error or self._closed:
                break
            log.warning("retrying %s: %s", task.id, verdict.reason)
            verdict = self.evaluator.evaluate(task, candidate)
        if not self._closed:  # otherwise closing may have caused the verdict
            self._cache.put(key, verdict)
        return verdict

    def _unusable_task(self, task: Task, error: UsageError) -> Verdict:
        return Verdict(
            status=Status.INFRA_ERROR,
            stage=Stage.TRACE,
            reason=str(error),
            task_id=task.id,
            candidate_sha="",
            precision=self.evaluator.precision_of(task),
            versions=self.evaluator.versions,
        )

    def close(self) -> None:
        """End every process. Verdicts in progress are dropped."""
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)
        self.evaluator.close()
        self.input_sets.close()
        self._cache.close()

    def __enter__(self) -> HardenedVerifier:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
