"""Memory that two processes of one machine see: device memory by CUDA IPC, host memory where that does not work."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.base import cuda_driver


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies in shared memory, contiguous."""

    offset: int
    """Bytes from the start."""
    dtype: str
    """torch's name without the prefix, such as `float32`."""
    shape: tuple[int, ...]

    def read(self, memory: Tensor) -> Tensor:
        """The tensor, as a view of the shared memory (uint8, 1-D)."""
        dtype = getattr(torch, self.dtype)
        return memory[self.offset : self.offset + math.prod(self.shape) * dtype.itemsize].view(dtype).view(self.shape)


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """How another process opens a block of memory. Plain data: it is sent by pickle."""

    on_device: bool
    nbytes: int
    version: int
    """Another number for every block that the same owner makes."""
    handle: Any
    """CUDA's IPC handle, or (process id, file descriptor) of its owner."""

    def open(self) -> Tensor:
        """The memory, in another process: uint8 [nbytes]."""
        if self.on_device:
            return cuda_driver.open_shared(self.handle, self.nbytes)
        pid, descriptor = self.handle
        with open(f"/proc/{pid}/fd/{descriptor}", "r+b") as file:
            return torch.frombuffer(mmap.mmap(file.fileno(), self.nbytes), dtype=torch.uint8)

    def close(self, memory: Tensor) -> None:
        """Let go of what `open` gave."""
        if self.on_device:
            cuda_driver.close_shared(memory)
