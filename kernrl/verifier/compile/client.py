"""Machine code for a plan's kernels: TTIR text in, cubins out, made by Triton's own pipeline in a sandbox of its own.

`ptxas` and LLVM take almost all of a verdict's CPU time, so kernels are compiled side by side and kept, in memory and on
disk, under a hash of all that decides the machine code.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import importlib.metadata
import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kernrl.errors import InfrastructureError
from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.plan import KernelSource
from kernrl.verifier.sandbox.client import End, Sandbox, Session, Walls

_MEMORY_ENTRIES = 4096
_FORMAT = 1


@dataclass(slots=True)
class _Asked:
    """A kernel that is to be compiled, and who waits for it."""

    key: str
    request: dict[str, Any]
    future: Future[CompiledKernel | Rejection]


class Compiler:
    """Compiles kernels; thread-safe. At most `workers` are compiled at once, whoever asks."""

    def __init__(
        self, workers: int, *, targets: Sequence[str] = ("sm_90",), cache_dir: Path | None = None,
        require_sandbox: bool = False, slots: threading.BoundedSemaphore | None = None,
    ) -> None:  # fmt: skip
        """`targets` are warmed up at the start; any other architecture works too. `cache_dir` None keeps nothing on disk.

        `slots` bounds what is at work together with other users of the same cores.
        """
        walls = Walls(may_execute=True, memory_bytes=8 << 30, cpu_s=120, file_bytes=256 << 20, require=require_sandbox)
        # line tables are for profilers, and make cubins three times the size
        env = {"TRITON_DISABLE_LINE_INFO": "1"}
        self._sandbox = Sandbox("kernrl.verifier.compile.child", walls=walls, settings={"targets": list(targets)}, env=env)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="compile")
        self._slots = slots or threading.BoundedSemaphore(workers)
        self._lock = threading.Lock()
        self._known: collections.OrderedDict[str, Future[CompiledKernel | Rejection]] = collections.OrderedDict()
        self._dir = cache_dir
        self._version = importlib.metadata.version("triton")

    def start(self) -> None:
        """Warm up now rather than at the first kernel."""
        self._sandbox.start()

    def compile(
        self, kernels: Sequence[KernelSource], target: str, timeout_s: float = 60.0
    ) -> list[CompiledKernel | Rejection]:
        """Machine code, or why there is none, for each kernel: an autotuned launch can do without some of its variants.

        `timeout_s` is each kernel's own, from when its turn comes. Raises InfrastructureError when the sandbox cannot be
        started, or is closed.
        """
        futures: list[Future[CompiledKernel | Rejection]] = []
        new: list[_Asked] = []
        with self._lock:
            for kernel in kernels:
                futures.append(self._asked(kernel, target, new))
        # side by side while cores are idle; one after another in one process, which is cheaper, where none is
        lots = min(len(new), max(1, self._idle(len(new))))
        for i in range(lots):
            try:
                self._pool.submit(self._work, new[i::lots], timeout_s)
            except RuntimeError:  # the pool takes nothing more, and others may wait for the same kernels
                for asked in new[i::lots]:
                    asked.future.set_exception(InfrastructureError("the compiler is closed"))
        # waiting for a turn is not the kernel's fault, so the clock runs in the sandbox alone
        return [future.result() for future in futures]

    def close(self) -> None:
        """End the sandbox: whoever waits for a kernel meets InfrastructureError."""
        self._sandbox.close()
        self._pool.shutdown(wait=False)  # what is in line finds the sandbox closed, and says so to those who wait

    def _idle(self, most: int) -> int:
        """How many of the slots nobody uses at this moment, counted up to `most`."""
        count = 0
        while count < most and self._slots.acquire(blocking=False):
            count += 1
        for _ in range(count):
            self._slots.release()
        return count

    def _asked(self, kernel: KernelSource, target: str, new: list[_Asked]) -> Future[CompiledKernel | Rejection]:
        """The future of one kernel; equal kernels share one. What nobody has asked before is added to `new`."""
        options = {
            "num_warps": kernel.num_warps,
            "num_stages": kernel.num_stages,
            "num_ctas": kernel.num_ctas,
            **kernel.options,
        }
        request = {"ttir": kernel.ttir, "options": options, "target": target}
        key = hashlib.sha256(json.dumps([_FORMAT, self._version, request], sort_keys=True).encode()).hexdigest()
        future = self._known.get(key)
        if future is None or (future.done() and future.exception() is not None):
            future = self._known[key] = Future()
            new.append(_Asked(key, request, future))
            if len(self._known) > _MEMORY_ENTRIES:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return future

    def _work(self, lot: list[_Asked], timeout_s: float) -> None:
        """Compile one lot, and tell whoever waits for it."""
        try:
            for asked in list(lot):
                if (kept := self._load(asked.key)) is not None:
                    asked.future.set_result(kept)
                    lot.remove(asked)
            while lot:
                self._session(lot, timeout_s)
        except BaseException as error:
            for asked in lot:
                asked.future.set_exception(error)

    def _session(self, lot: list[_Asked], timeout_s: float) -> None:
        """Compile from the front of the lot, in one process, until the lot is empty or the process is no more."""
        with self._slots, self._sandbox.open(timeout_s) as session:
            for i, asked in enumerate(list(lot)):
                answer = self._answer(session, asked)
                if answer is None and i:
                    return  # the process may have died of what came before: this one gets its own
                made = answer or self._died(asked, session.end(), timeout_s)  # which may raise, while it is still in the lot
                lot.pop(0).future.set_result(made)
                if answer is None:
                    return

    def _answer(self, session: Session, asked: _Asked) -> CompiledKernel | Rejection | None:
        """What the process makes of one kernel; None when it is gone."""
        session.send(json.dumps(asked.request).encode())
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
        compiled = _kernel(row, cubin, str(asked.request["target"]))
        self._store(asked.key, compiled)
        return compiled

    def _died(self, asked: _Asked, end: End, timeout_s: float) -> Rejection:
        if end.timed_out or end.code == -24:
            # a result for this deadline, not for good
            self._forget(asked.key)
            return _too_slow(timeout_s)
        said = f": {end.log.strip().splitlines()[-1][:300]}" if end.log.strip() else ""
        return Rejection(Status.COMPILE_ERROR, f"Triton's compiler died (exit {end.code}) on this kernel{said}.")

    def _forget(self, key: str) -> None:
        with self._lock:
            self._known.pop(key, None)

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
        # a cache that cannot be written (a full disk) costs time, not verdicts
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
    return Rejection(
        Status.TIMEOUT, f"The kernels did not compile within {timeout_s:g} s: use smaller blocks or fewer unrolled loops."
    )
