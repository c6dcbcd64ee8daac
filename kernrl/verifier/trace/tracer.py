"""From a candidate's source to plans: `child.py` runs it in the sandbox, and nothing that comes from there is trusted here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.plan.codec import encode_spec
from kernrl.verifier.plan.plan import TraceSpec
from kernrl.verifier.plan.reading import MAX_TOTAL_BYTES
from kernrl.verifier.sandbox.sandbox import End, Sandbox, Session, Walls

_MAX_REASON_CHARS = 2000
_MAX_HEADER_BYTES = 1 << 16

CPU_S = 10
"""CPU seconds of a candidate's process. Honest ones take one, or some for many configurations."""


@dataclass(frozen=True, slots=True)
class Traced:
    """What came out of the sandbox for one candidate: untrusted bytes, one frame a plan, for `plan.reading`."""

    frames: list[bytes]
    seconds: float
    """That the candidate's process took."""


class Tracer:
    """Records candidates' forward passes. Thread-safe; at most `workers` candidates are in the sandbox at once."""

    def __init__(
        self, workers: int, *, target: str = "sm_90", require_sandbox: bool = False,
        slots: threading.BoundedSemaphore | None = None,
    ) -> None:  # fmt: skip
        """`slots` limits what runs together with other users of the same cores."""
        walls = Walls(memory_bytes=2 << 30, cpu_s=CPU_S, file_bytes=64 << 20, require=require_sandbox)
        self._sandbox = Sandbox("kernrl.verifier.trace.child", walls=walls, settings={"target": target})
        self._slots = slots or threading.BoundedSemaphore(workers)

    def start(self) -> None:
        """Start the sandbox now rather than at the first trace. Raises InfrastructureError."""
        self._sandbox.start()

    def trace(self, source: str, specs: Sequence[TraceSpec], timeout_s: float = 30.0) -> Traced | Rejection:
        """One encoded plan for each spec, in order; the module is executed once for all of them.

        Raises InfrastructureError when the sandbox cannot be started.
        """
        request = json.dumps({"source": source, "specs": [encode_spec(s) for s in specs]}).encode()
        with self._slots, self._sandbox.open(timeout_s) as session:
            begun = time.monotonic()
            session.send(request)
            answer = receive_plans(session, len(specs))
            if answer is not None:
                return answer if isinstance(answer, Rejection) else Traced(answer, time.monotonic() - begun)
            return rejection_of(session.end(), timeout_s)

    def close(self) -> None:
        """End the sandbox."""
        self._sandbox.close()


def receive_plans(session: Session, count: int) -> list[bytes] | Rejection | None:
    """The child's answer, or None if it gave none that makes sense."""
    said = session.recv() or b""
    try:
        header = json.loads(said) if len(said) <= _MAX_HEADER_BYTES else {}
        if "reject" in header:
            status, reason = header["reject"]
            if status in ("untraceable", "compile_error", "syntax_error", "trace_error"):
                return Rejection(Status(status), str(reason)[:_MAX_REASON_CHARS])
            return None
        if header["plans"] != count:
            return None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    frames: list[bytes] = []
    while len(frames) < count and sum(map(len, frames)) <= MAX_TOTAL_BYTES:
        frames.append(session.recv() or b"")
    return frames


def rejection_of(end: End, timeout_s: float) -> Rejection:
    """The rejection for a child that ended without an answer."""
    if end.timed_out or (end.code < 0 and end.cpu_s > 0.9 * CPU_S):  # the kernel kills at that limit
        return Rejection(Status.TIMEOUT, f"The code did not finish tracing within {timeout_s:g} s.")
    said = f": {end.log.strip().splitlines()[-1][:300]}" if end.log.strip() else ""
    if end.code < 0:
        return Rejection(Status.CRASH, f"The process running the code was killed by signal {-end.code}{said}.")
    return Rejection(Status.TRACE_ERROR, f"The code ended its process (exit code {end.code}) before it was traced{said}.")
