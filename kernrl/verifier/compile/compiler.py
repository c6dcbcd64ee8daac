"""Machine code for a plan's kernels: TTIR text in, cubins out, made by Triton's own pipeline in a sandbox.

`ptxas` and LLVM take almost all of a verdict's CPU time, so kernels are compiled in parallel and cached, in memory and on
disk, under a hash of everything that decides the machine code.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import importlib.metadata
import json
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernrl.errors import InfrastructureError
from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.compile.compiler_child import OUT_OF_TIME
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import KernelSource
from kernrl.verifier.sandbox.sandbox import End, Sandbox, Session, Walls

_MEMORY_ENTRIES = 4096
_FORMAT = 1

CPU_S = 20
"""CPU seconds of a process that compiles, and of each ptxas that it starts."""

WALL_FACTOR = 4.0
"""Seconds that a process may take for each of its CPU seconds: a busy machine refuses no kernel, and nothing hangs."""

LEAST_S = 0.2
"""What is left of a candidate's seconds below this is too little to start a process for."""


@dataclass(slots=True)
class _Request:
    """A kernel to compile, and the future that its callers wait for."""

    key: str
    message: dict[str, Any]
    future: Future[CompiledKernel | Rejection]


class Compiler:
    """Compiles kernels. Thread-safe; at most `workers` are compiled at once, over all callers."""

    def __init__(
        self, workers: int, *, targets: Sequence[str] = ("sm_90",), cache_dir: Path | None = None,
        require_sandbox: bool = False, slots: threading.BoundedSemaphore | None = None,
    ) -> None:  # fmt: skip
        """`targets` are warmed up at the start; other architectures work too. With `cache_dir` None, nothing is kept on disk.

        `slots` limits what runs together with other users of the same cores.
        """
        walls = Walls(may_execute=True, memory_bytes=2 << 30, cpu_s=CPU_S, file_bytes=256 << 20, require=require_sandbox)
        # line tables are for profilers only, and make cubins three times as large
        env = {"TRITON_DISABLE_LINE_INFO": "1"}
        self._sandbox = Sandbox(
            "kernrl.verifier.compile.compiler_child", walls=walls, settings={"targets": list(targets)}, env=env
        )
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="compile")
        self._slots = slots or threading.BoundedSemaphore(workers)
        self._lock = threading.Lock()
        self._futures: collections.OrderedDict[str, Future[CompiledKernel | Rejection]] = collections.OrderedDict()
        self._dir = cache_dir
        self._version = importlib.metadata.version("triton")

    def start(self) -> None:
        """Start the sandbox now rather than at the first kernel. Raises InfrastructureError."""
        self._sandbox.start()

    def compile(
        self, kernels: Sequence[KernelSource], target: str, timeout_s: float = 60.0
    ) -> list[CompiledKernel | Rejection]:
        """Machine code for each kernel, or why there is none: an autotuned launch can do without some of its variants.

        `timeout_s` is in CPU seconds, those of ptxas included, for all of them together, however many and in however many
        processes: those that come too late are rejected with `timeout`. `WALL_FACTOR` times as long may pass. Raises
        InfrastructureError when the sandbox cannot be started, or is closed.
        """
        futures: list[Future[CompiledKernel | Rejection]] = []
        new: list[_Request] = []
        with self._lock:
            for kernel in kernels:
                futures.append(self._future_of(kernel, target, new))
        # in parallel while cores are idle; otherwise one after another in one process, which is cheaper
        batches = min(len(new), max(1, self._idle_slots(len(new))))
        for i in range(batches):
            try:
                self._pool.submit(self._compile_batch, new[i::batches], timeout_s / batches, timeout_s)
            except RuntimeError:  # the pool is shut down, and other callers may wait for the same kernels
                for request in new[i::batches]:
                    request.future.set_exception(InfrastructureError("the compiler is closed"))
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the sandbox; callers that wait for a kernel get InfrastructureError."""
        self._sandbox.close()
        self._pool.shutdown(wait=False)  # queued batches find the sandbox closed, and fail

    def _idle_slots(self, most: int) -> int:
        """How many slots are free at this moment, counted up to `most`."""
        count = 0
        while count < most and self._slots.acquire(blocking=False):
            count += 1
        for _ in range(count):
            self._slots.release()
        return count

    def _future_of(self, kernel: KernelSource, target: str, new: list[_Request]) -> Future[CompiledKernel | Rejection]:
        """The future of one kernel, shared by equal kernels. If it is new, a request is added to `new`."""
        options = {
            "num_warps": kernel.num_warps,
            "num_stages": kernel.num_stages,
            "num_ctas": kernel.num_ctas,
            **kernel.options,
        }
        message = {"ttir": kernel.ttir, "options": options, "target": target}
        key = hashlib.sha256(json.dumps([_FORMAT, self._version, message], sort_keys=True).encode()).hexdigest()
        future = self._futures.get(key)
        if future is None or (future.done() and future.exception() is not None):
            future = self._futures[key] = Future()
            new.append(_Request(key, message, future))
            if len(self._futures) > _MEMORY_ENTRIES:
                self._futures.popitem(last=False)
        self._futures.move_to_end(key)
        return future

    def _compile_batch(self, batch: list[_Request], left_s: float, timeout_s: float) -> None:
        """Compile a batch within `left_s`, its share of `timeout_s`, and complete its futures."""
        try:
            for request in list(batch):
                if (cached := self._load(request.key)) is not None:
                    request.future.set_result(cached)
                    batch.remove(request)
            while batch and left_s > LEAST_S:
                left_s -= self._session(batch, left_s, timeout_s)
            for request in batch:
                self._forget(request.key)  # with more time it may compile
                request.future.set_result(_too_slow(timeout_s))
        except BaseException as error:
            for request in batch:
                if not request.future.done():
                    request.future.set_exception(error)

    def _session(self, batch: list[_Request], left_s: float, timeout_s: float) -> float:
        """Compile from the front of the batch, in one process, until the batch is empty or the process has died.

        Returns the CPU seconds that it took.
        """
        with self._slots, self._sandbox.open(WALL_FACTOR * left_s) as session:
            begun = time.monotonic()
            for i, request in enumerate(list(batch)):
                answer = self._answer(session, request, left_s)
                if answer is None and i:
                    break  # it may have died of an earlier kernel: this one gets a process of its own
                # may raise, while the request is still in the batch
                result = answer or self._death_of(request, session.end(), left_s, timeout_s)
                batch.pop(0).future.set_result(result)
                if answer is None:
                    break
            return max(session.end().cpu_s, (time.monotonic() - begun) / WALL_FACTOR)

    def _answer(self, session: Session, request: _Request, left_s: float) -> CompiledKernel | Rejection | None:
        """The process's answer on one kernel; None when it is gone, or has used up its CPU seconds."""
        session.send(json.dumps(request.message | {"cpu_s": left_s}).encode())
        header = session.recv()
        if header is None:
            return None
        row = json.loads(header)
        if "reject" in row:
            status, reason = row["reject"]
            return Rejection(Status(status), reason)
        cubin = session.recv()
        if cubin is None:
            return None
        compiled = _kernel(row, cubin, str(request.message["target"]))
        self._store(request.key, compiled)
        return compiled

    def _death_of(self, request: _Request, end: End, left_s: float, timeout_s: float) -> Rejection:
        """The rejection of a kernel on which the process died."""
        killed = end.code < 0 and end.cpu_s > 0.9 * min(CPU_S, left_s)  # by the kernel, at that limit
        if end.timed_out or end.code == OUT_OF_TIME or killed:
            self._forget(request.key)  # with another limit it may compile
            return _too_slow(timeout_s)
        said = f": {end.log.strip().splitlines()[-1][:300]}" if end.log.strip() else ""
        return Rejection(Status.COMPILE_ERROR, f"Triton's compiler died (exit {end.code}) on this kernel{said}.")

    def _forget(self, key: str) -> None:
        with self._lock:
            self._futures.pop(key, None)

    def _load(self, key: str) -> CompiledKernel | None:
        if self._dir is None:
            return None
        try:
            header, cubin = (self._dir / f"{key}.bin").read_bytes().split(b"\n", 1)
            row = json.loads(header)
            if hashlib.sha256(cubin).hexdigest() != row.pop("sha"):
                return None
            return CompiledKernel(**{**row, "parameters": tuple(row["parameters"])}, cubin=cubin)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _store(self, key: str, kernel: CompiledKernel) -> None:
        if self._dir is None:
            return
        row = asdict(kernel) | {"sha": hashlib.sha256(kernel.cubin).hexdigest()}
        del row["cubin"]
        temporary = self._dir / f".{key}.{os.getpid()}.{threading.get_ident()}"
        # if the cache cannot be written (a full disk), that costs time, never a verdict
        with contextlib.suppress(OSError):
            self._dir.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(json.dumps(row).encode() + b"\n" + kernel.cubin)
            temporary.replace(self._dir / f"{key}.bin")


def _kernel(row: dict[str, Any], cubin: bytes, target: str) -> CompiledKernel:
    if row["profile_scratch_bytes"]:
        raise InfrastructureError("the compiler made an instrumented kernel")
    return CompiledKernel(
        name=str(row["name"]),
        cubin=cubin,
        parameters=tuple(row["parameters"]),
        shared_bytes=int(row["shared_bytes"]),
        num_warps=int(row["num_warps"]),
        global_scratch_bytes=int(row["global_scratch_bytes"]),
        global_scratch_align=int(row["global_scratch_align"]),
        target=target,
    )


def _too_slow(timeout_s: float) -> Rejection:
    reason = f"The kernels did not compile in {timeout_s:g} s of CPU time: use smaller blocks or fewer unrolled loops."
    return Rejection(Status.TIMEOUT, reason)
