"""The processes of a verifier's first GPU, for tests that kill them."""

from __future__ import annotations

from pathlib import Path

from kernrl.verifier.pool.gpu_client import GpuClient
from kernrl.verifier.verifier import HardenedVerifier


def gpu_processes(verifier: HardenedVerifier) -> list[int]:
    """Replay and judge processes: children of the GPU process's fork server."""
    gpu = verifier.evaluator.gpus[0]
    assert isinstance(gpu, GpuClient)
    assert gpu.pid
    return [child for server in children(gpu.pid) for child in children(server)]


def children(pid: int) -> list[int]:
    stats = [path.read_text().rpartition(")") for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    return [int(name.split()[0]) for name, _, rest in stats if int(rest.split()[1]) == pid]
