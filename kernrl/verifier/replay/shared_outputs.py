"""Where replay leaves outputs for the judge: memory that both processes see, and the only thing they share."""

from __future__ import annotations

import mmap
import os

import torch
from torch import Tensor

from kernrl.verifier.base import cuda_driver
from kernrl.verifier.base.shared_memory import SharedMemory, StoredTensor
from kernrl.verifier.replay.job import Job

LEAST_BYTES, STEP_BYTES = 256 << 20, 64 << 20
"""The smallest size of the memory, and what its size is a multiple of."""


def shared_bytes(job: Job) -> int:
    """Size of the memory for one candidate: all its judged calls, or those while it is timed."""
    everything = sum(job.output_bytes[draw.input_set] for draw in job.draws)
    most = max(everything, (job.spot_checks + 1) * max(job.output_bytes.values(), default=0))
    return _rounded(most)


def _rounded(nbytes: int) -> int:
    return max(LEAST_BYTES, -(-nbytes // STEP_BYTES) * STEP_BYTES)


class SharedOutputs:
    """The replay process's side: it writes outputs, and the judge opens `shared` to read them."""

    def __init__(self, *, on_device: bool = True):
        self._on_device, self._used, self._version = on_device, 0, 0
        self._retired: list[tuple[Tensor, SharedMemory]] = []
        """Memory that the judge may still have open."""
        self._allocate(LEAST_BYTES)

    def _allocate(self, nbytes: int) -> None:
        if self._on_device:
            memory, handle = cuda_driver.shareable(nbytes)
        else:
            descriptor = os.memfd_create("kernrl-outputs")
            os.ftruncate(descriptor, nbytes)
            handle = (os.getpid(), descriptor)
            memory = torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)
        self._version += 1
        self.memory: Tensor = memory
        self.shared = SharedMemory(self._on_device, nbytes, self._version, handle)
        """What the judge opens; another one, with another version, after the size has changed."""

    @property
    def nbytes(self) -> int:
        return self.shared.nbytes

    def reserve(self, nbytes: int, *, spare: bool = True) -> None:
        """Make room for the outputs of one candidate; without `spare`, give back what is not needed for them.

        Called once for each candidate. By the next call, the judge has closed the old memory and opened the new one.
        """
        while self._retired:
            self._free(*self._retired.pop())
        needed = _rounded(nbytes)
        if needed > self.nbytes or (needed < self.nbytes and not spare):
            self.clear()
            old = self.memory, self.shared
            self._allocate(needed)
            self._retired.append(old)

    def shrink(self) -> None:
        """Give back all but the least, between candidates. The judge has closed the memory."""
        while self._retired:
            self._free(*self._retired.pop())
        if self.nbytes > LEAST_BYTES:
            self._free(self.memory, self.shared)
            self._used = 0
            self._allocate(LEAST_BYTES)

    def _free(self, memory: Tensor, shared: SharedMemory) -> None:
        if self._on_device:
            cuda_driver.free(memory)
        else:
            os.close(shared.handle[1])

    def clear(self) -> None:
        """Erase what has been written: the last candidate's outputs were right answers to draws that its group shares."""
        self.memory[: self._used].zero_()
        self._used = 0

    def put(self, tensor: Tensor) -> StoredTensor:
        """Copy an output in, contiguous. The copy is queued, not waited for."""
        offset = self._used
        self._used = -(-(offset + tensor.nbytes) // 256) * 256
        stored = StoredTensor(offset, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        stored.read(self.memory).copy_(tensor, non_blocking=True)
        return stored
