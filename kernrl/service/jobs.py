"""The jobs of `kernrl serve`: each (task, candidate) is judged once, however many clients ask and however often."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Status, Verdict

KEPT = 4096
"""Verdicts held in memory after they were given; older ones are in the verifier's cache on disk."""


class Full(Exception):
    """As many jobs wait as may."""


class Closing(Exception):
    """The server is ending."""


class Judge(Protocol):
    """The part of a verifier that the server uses."""

    def verify(self, task: Task, candidate: str) -> Verdict: ...


@dataclass(slots=True)
class Job:
    """A candidate that waits, is being judged, or was."""

    id: str
    verdict: Future[Verdict]
    asked: float = field(default_factory=time.monotonic)


def job_id(task: Mapping[str, Any], candidate: str) -> str:
    """The id of a job: a hash of what is asked, so that asking again, even of a restarted server, is the same job."""
    return hashlib.sha256(json.dumps([task, candidate], sort_keys=True).encode()).hexdigest()


class Jobs:
    """Queue and results. Thread-safe."""

    def __init__(self, judge: Judge, *, limit: int, threads: int):
        """
        Args:
            limit: most jobs that are not done; one more is refused.
            threads: candidates handed to the verifier at once.
        """
        self._judge, self._limit = judge, limit
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="job")
        self._open: dict[str, Job] = {}
        self._done: OrderedDict[str, Job] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = False
        self.statuses: Counter[str] = Counter()
        """Verdicts given by status."""
        self.joined = 0
        """Requests that found their job under way or done."""
        self.seconds = 0.0
        """Time from request to verdict, summed."""

    def submit(self, id: str, task: Task, candidate: str) -> Job:
        """The job of that id, which begins unless it is there already.

        Raises:
            Full: the queue is full.
            Closing: `close` was called.
        """
        with self._lock:
            if known := self._open.get(id) or self._done.get(id):
                self.joined += 1
                return known
            if self._closed:
                raise Closing
            if len(self._open) >= self._limit:
                raise Full
            job = self._open[id] = Job(id, self._threads.submit(self._judge.verify, task, candidate))
        job.verdict.add_done_callback(lambda verdict: self._finish(job, verdict))
        return job

    def get(self, id: str) -> Job | None:
        """The job of that id, if it is known."""
        with self._lock:
            return self._open.get(id) or self._done.get(id)

    @property
    def unfinished(self) -> int:
        """Jobs that wait or are being judged."""
        return len(self._open)

    def _finish(self, job: Job, verdict: Future[Verdict]) -> None:
        with self._lock:
            self._open.pop(job.id, None)
            if verdict.cancelled() or verdict.exception():
                return  # asked again, it is tried again
            status = verdict.result().status
            self.statuses[str(status)] += 1
            self.seconds += time.monotonic() - job.asked
            if status is not Status.INFRA_ERROR:
                self._done[job.id] = job
            while len(self._done) > KEPT:
                self._done.popitem(last=False)

    def close(self) -> None:
        """Take no more; jobs that have not begun are cancelled."""
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
