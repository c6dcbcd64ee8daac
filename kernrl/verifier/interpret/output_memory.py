"""Host memory in which an interpreter leaves outputs for the judge's process."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
from torch import Tensor

from kernrl.verifier.base.shared_memory import SharedMemory, StoredTensor

_ALIGN_BYTES = 64


class OutputMemory:
    """A block of memory that has no name, opened by another process through this one's descriptor."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("outputs", os.MFD_CLOEXEC)
        self._end = self._version = 0

    def clear(self) -> None:
        """Give the memory back; what was stored is gone."""
        os.ftruncate(self._descriptor, 0)
        self._end = 0

    def add(self, tensors: Sequence[Tensor]) -> list[StoredTensor]:
        """Copy tensors of any strides to the end of the memory."""
        stored = []
        for tensor in tensors:
            data = memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]
            stored.append(StoredTensor(self._end, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)))
            written = 0
            while written < len(data):
                written += os.pwrite(self._descriptor, data[written:], self._end + written)
            self._end += -(-len(data) // _ALIGN_BYTES) * _ALIGN_BYTES
        return stored

    def shared(self) -> SharedMemory:
        """How another process opens it."""
        self._version += 1
        size = max(self._end, _ALIGN_BYTES)
        os.ftruncate(self._descriptor, size)
        return SharedMemory(False, size, self._version, (os.getpid(), self._descriptor))
