"""Where replay leaves outputs for the judge: memory both processes see, and nothing else of each other."""

from __future__ import annotations

import mmap
import os
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier import driver
from kernrl.verifier.judge import Shown

FIRST_BYTES = 256 << 20


class Outbox:
    """Device memory shared by CUDA IPC, or host memory where that does not work. Pickled, it carries only the way in.

    `put` and `clear` are the replay process's, `open` the judge's. A full outbox grows, under a new `version`.
    """

    def __init__(self, *, share: bool = True):
        self.on_device = share
        self.version = 0
        self._used = 0
        self._grow(FIRST_BYTES)

    def _grow(self, nbytes: int) -> None:
        self.nbytes, self.version = nbytes, self.version + 1
        self.handle: Any
        if self.on_device:
            self.memory, self.handle = driver.shareable(nbytes)
        else:
            descriptor = os.memfd_create("kernrl-outbox")
            os.ftruncate(descriptor, nbytes)
            self.handle = (os.getpid(), descriptor)
            self.memory = torch.frombuffer(mmap.mmap(descriptor, nbytes), dtype=torch.uint8)

    def reserve(self, nbytes: int) -> None:
        """Make room for this many bytes of outputs before any is put."""
        if nbytes > self.nbytes:
            self._grow(max(nbytes, 2 * self.nbytes))

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
            return driver.open_shared(self.handle, self.nbytes)
        pid, descriptor = self.handle
        with open(f"/proc/{pid}/fd/{descriptor}", "r+b") as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), self.nbytes), dtype=torch.uint8)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("on_device", "version", "nbytes", "handle")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
