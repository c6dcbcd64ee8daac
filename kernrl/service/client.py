"""A verifier behind `kernrl serve`: the same calls as HardenedVerifier, answered over HTTP."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from types import TracebackType
from typing import Any, Protocol, Self

from kernrl.config import VerifierConfig
from kernrl.errors import InfrastructureError, UsageError
from kernrl.http_client import Cancelled, Refused, Server
from kernrl.tasks.rows import task_to_row
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Stage, Status, Verdict

log = logging.getLogger(__name__)

TOKEN = "KERNRL_VERIFIER_TOKEN"
"""Environment variable with the server's token; a flag would be seen by every user of the machine and recorded in runs."""

WAIT_S = 30.0
"""Longest one request waits for its verdict, after which it is asked for again."""

PATIENCE_S = 600.0
"""How long a server that does not answer, or is full, is asked again: it may be starting anew."""

IN_FLIGHT = 64
"""Candidates asked about at once."""

SERVERS_OWN = frozenset(
    (
        "target", "workers", "cache", "cache_dir", "require_sandbox", "trace_timeout_s", "compile_timeout_s", "candidate_cpu_s",
        "gpu_timeout_s", "gpu_memory_share",
    )
)  # fmt: skip
"""Settings that the server was started with, and a client cannot choose."""


class AnyVerifier(Protocol):
    """What judges candidates, here or elsewhere: HardenedVerifier and RemoteVerifier."""

    def verify(self, task: Task, candidate: str) -> Verdict: ...

    def verify_many(self, pairs: Iterable[tuple[Task, str]]) -> Iterator[tuple[int, Verdict]]: ...

    def gpu(self) -> str: ...

    def unfit(self, task: Task) -> str: ...

    def doing(self) -> str: ...

    def untimed(self, gpu: int | None = None) -> contextlib.AbstractContextManager[None]: ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def open_verifier(config: VerifierConfig) -> AnyVerifier:
    """The verifier that the settings ask for: on this machine or a Ray cluster, or behind an address.

    Raises:
        UsageError: settings that cannot be served.
        InfrastructureError: nobody answers at the address.
    """
    if config.executor.startswith("http"):
        return RemoteVerifier(config)
    from kernrl.verifier.verifier import HardenedVerifier

    return HardenedVerifier(config)


def gpu_judged_on(config: VerifierConfig) -> str:
    """What `open_verifier(config).gpu()` says, without starting what judges on this machine. Raises as that does."""
    if config.executor != "local":
        with open_verifier(config) as verifier:
            return verifier.gpu()
    import torch

    from kernrl.verifier.base.devices import gpu_aimed_at

    here = None
    if config.device != "cpu" and torch.cuda.is_available():
        p = torch.cuda.get_device_properties(0)
        here = {"gpu": p.name, "arch": f"sm_{p.major}{p.minor}"}
    return gpu_aimed_at(config.target, here)


class RemoteVerifier:
    """Asks a server that `kernrl serve` runs. A context manager, thread-safe.

    A request may be repeated: the server knows a job by its content, so nothing is judged twice or lost when either side is
    killed and comes back.
    """

    def __init__(self, config: VerifierConfig, *, patience_s: float = PATIENCE_S):
        """Raises as `open_verifier` does."""
        self.config, self._patience_s = config, patience_s
        self._server = Server(config.executor, timeout_s=WAIT_S + 30, flag=config.EXECUTOR, key=TOKEN)
        self._threads = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="verify")
        self._away, self._telling = False, threading.Lock()
        self.about: dict[str, Any] = self._server.get("/v1/about")
        """What the server says of its verifier: baselines, device, versions."""
        self._check()

    def verify(self, task: Task, candidate: str) -> Verdict:
        """The verdict on one candidate: source text, or a model's whole reply. Raises UsageError for an unusable task."""
        task = replace(task, precision=self.config.precision or task.precision, solutions=(), instruction="")
        body = {"task": task_to_row(task), "candidate": candidate}
        until = time.monotonic() + self._patience_s
        while True:
            try:
                answer = self._server.post(f"/v1/verdicts?wait={WAIT_S:g}", body)
            except Refused as error:
                if error.status != 422:
                    raise
                raise UsageError(error.reason) from None
            except InfrastructureError as error:
                if time.monotonic() > until:
                    raise
                self._tell(str(error))
                continue
            self._tell("")
            if isinstance(answer, dict) and "verdict" in answer:
                return Verdict.from_json(answer["verdict"])
            until = time.monotonic() + self._patience_s  # it answers: the candidate is in its queue

    def _tell(self, problem: str) -> None:
        """Say once, for all calls that wait, that the server does not answer, and once that it answers again."""
        with self._telling:
            if problem and not self._away:
                log.warning("%s Asking again for %g minutes.", f"{problem.rstrip('.')}.", self._patience_s / 60)
            elif self._away and not problem:
                log.warning("%s answers again.", self._server.url)
            self._away = bool(problem)

    def verify_many(self, pairs: Iterable[tuple[Task, str]]) -> Iterator[tuple[int, Verdict]]:
        """(position, verdict) of each pair as it completes, as HardenedVerifier gives them."""
        pending: dict[Future[Verdict], tuple[int, Task]] = {}
        for position, (task, candidate) in enumerate(pairs):
            pending[self._threads.submit(self.verify, task, candidate)] = position, task
            while len(pending) >= IN_FLIGHT:
                yield from self._completed(pending)
        while pending:
            yield from self._completed(pending)

    def gpu(self) -> str:
        """The server's; '' where it is of a version that does not say."""
        return self.about.get("gpu", "")

    def unfit(self, task: Task) -> str:
        """Not known here: the server says so with the first verdict."""
        return ""

    def doing(self) -> str:
        """Not known here."""
        return ""

    def untimed(self, gpu: int | None = None) -> contextlib.AbstractContextManager[None]:
        """Nothing to do: the server's GPUs are not the caller's."""
        return contextlib.nullcontext()

    def _completed(self, pending: dict[Future[Verdict], tuple[int, Task]]) -> Iterator[tuple[int, Verdict]]:
        done, _ = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            position, task = pending.pop(future)
            try:
                yield position, future.result()
            except (UsageError, InfrastructureError) as error:
                yield position, self._unjudged(task, str(error))

    def _unjudged(self, task: Task, reason: str) -> Verdict:
        return Verdict(
            status=Status.INFRA_ERROR,
            stage=Stage.PARSE,
            reason=reason,
            task_id=task.id,
            candidate_sha="",
            precision=self.config.precision or task.precision,
            versions=self.about.get("versions", {}),
        )

    def _check(self) -> None:
        """Refuse settings that the server does not serve, rather than ignore them."""
        config, where = self.config, f"{self.config.EXECUTOR} {self._server.url}"
        if not isinstance(self.about, dict) or "baseline" not in self.about:
            raise UsageError(f"{where}: this is no server that 'kernrl serve' runs.")
        if own := sorted(SERVERS_OWN & config.model_fields_set):
            raise UsageError(f"{where}: {', '.join(own)} must be set where 'kernrl serve' is started, not here.")
        if tuple(self.about["baseline"]) != config.baseline:
            serves = ",".join(self.about["baseline"])
            raise UsageError(f"{where}: the server's baselines are {serves}: ask for --baseline {serves}.")
        if self.about["any_shape"] != config.any_shape:
            state = "with" if self.about["any_shape"] else "without"
            raise UsageError(f"{where}: the server was started {state} --any-shape: use it {state} that, too.")
        if config.device == "cuda" and not self.about["gpus"]:
            raise UsageError(f"{where}: --device cuda: the server has no GPU.")
        if (fixed := self.about["precision"]) and config.precision not in (None, fixed):
            raise UsageError(f"{where}: the server judges everything under --precision {fixed}.")

    def close(self) -> None:
        """Drop what is under way; the server goes on with it."""
        self._server.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with contextlib.suppress(Cancelled):
            self.close()
