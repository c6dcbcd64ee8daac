"""Where replay leaves outputs for the judge: memory both processes see, and nothing else of each other."""

from __future__ import annotations

import mmap
import os
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.base import cuda_driver
from kernrl.verifier.judge.server import Shown

FIRST_BYTES, STEP_BYTES = 256 << 20, 64 << 20
"""The least it holds, and what its size is a multiple of."""


class Outbox:
    """Device memory shared by CUDA IPC, or host memory where that does not work. Pickled, it carries only the way in.

    `put` and `clear` are the replay process's, `open` and `close` the judge's. An outbox of another size has a new `version`.
    """

    def __init__(self, *, share: bool = True):
        self.on_device = share
        self.version = 0
        self._used = 0
        self._retired: list[tuple[Tensor, Any]] = []
        """Memory that the judge may still have open."""
        self._make(FIRST_BYTES)

    def _make(self, nbytes: int) -> None:
        if self.on_device:
            memory, handle = cuda_driver.shareable(nbytes)
        else:
            descriptor = os.memfd_create("kernrl-outbox")
            os.ftruncate(descriptor, nbytes)
            handle = (os.getpid(), descriptor)
            memory = torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)
        self.memory: Tensor = memory
        self.handle: Any = handle
        self.nbytes, self.version = nbytes, self.version + 1

    def reserve(self, nbytes: int, *, spare: bool = True) -> None:
        """Make room for this many bytes of outputs before any is put; without `spare`, give back what is beyond them.

        Once a candidate: what was given up at the last has been closed by the judge, who has opened its successor.
        """
        while self._retired:
            self._free(*self._retired.pop())
        needed = max(FIRST_BYTES, -(-nbytes // STEP_BYTES) * STEP_BYTES)
        if needed > self.nbytes or (needed < self.nbytes and not spare):
            self.clear()
            old = self.memory, self.handle
            self._make(needed)
            self._retired.append(old)

    def _free(self, memory: Tensor, handle: Any) -> None:
        if self.on_device:
            cuda_driver.free(memory)
        else:
            os.close(handle[1])

    def clear(self) -> None:
        """Forget and erase: the last candidate's outputs were right answers to draws that its group shares."""
        self.memory[: self._used].zero_()
        self._used = 0

    def put(self, tensor: Tensor) -> Shown:
        """Copy an output in, contiguous. The copy is queued, not waited for."""
        offset = self._used
        self._used = -(-(offset + tensor.nbytes) // 256) * 256
        place = Shown(offset, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        place.read(self.memory).copy_(tensor, non_blocking=True)
        return place

    def open(self) -> Tensor:
        """The memory, in the other process: uint8 [nbytes]."""
        if self.on_device:
            return cuda_driver.open_shared(self.handle, self.nbytes)
        pid, descriptor = self.handle
        with open(f"/proc/{pid}/fd/{descriptor}", "r+b") as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), self.nbytes), dtype=torch.uint8)

    def close(self, memory: Tensor) -> None:
        """Let go of what `open` gave."""
        if self.on_device:
            cuda_driver.close_shared(memory)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("on_device", "version", "nbytes", "handle")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
