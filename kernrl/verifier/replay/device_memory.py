"""The memory in which a plan is replayed, and its loaded machine code."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernrl.verifier.base import cuda_driver
from kernrl.verifier.judge.inputs import ALIGN_BYTES, GUARD_BYTES
from kernrl.verifier.plan.compiled import CompiledKernel

FIELD_BYTES, LEAST_BYTES, FIELD_POISON = 64 << 20, 256 << 20, 0x5B
"""Size of the field on either side of the buffers, least size of the whole block, and the byte that fills the field."""


def block_bytes(temporaries: int) -> int:
    """Size of the block for buffers of that many bytes together."""
    return max(temporaries + 2 * FIELD_BYTES, LEAST_BYTES)


class DeviceMemory:
    """Device memory for one plan at a time: buffers with guards between them, inside a wide poisoned field.

    A write out of bounds, or a note that a kernel leaves for its next call, lands in a guard (checked after every run) or
    in the field (checked once a phase).
    """

    def __init__(self) -> None:
        self.block = torch.empty(0, dtype=torch.uint8, device="cuda")
        self._guards = torch.empty(0, dtype=torch.int64, device="cuda")
        self._end = self._furthest = FIELD_BYTES
        self._byte = 0

    def release(self) -> None:
        """Give the memory back; the next plan allocates anew."""
        self.block = torch.empty(0, dtype=torch.uint8, device="cuda")

    def shrink(self, temporaries: int) -> None:
        """Give the memory back if it is much larger than buffers of that many bytes, with their guards, need."""
        if self.block.numel() > 1.05 * block_bytes(temporaries):
            self.release()

    def seal(self) -> None:
        """Poison the whole block, before a candidate's first run."""
        self._furthest = FIELD_BYTES
        self.block.fill_(FIELD_POISON)

    def lay_out(self, sizes: Sequence[int]) -> list[int]:
        """Byte offsets for buffers of the given sizes, in place of those laid out before."""
        offsets, guards, end = [], [], FIELD_BYTES
        for size in sizes:
            offsets.append(end)
            after = end + size
            end = -(-(after + GUARD_BYTES) // ALIGN_BYTES) * ALIGN_BYTES
            guards.append((-(-after // 8), end // 8))
        self._end, self._furthest = end, max(self._furthest, end)
        if self.block.numel() < end + FIELD_BYTES:
            self.block = torch.empty(0, dtype=torch.uint8, device="cuda")
            self.block = torch.empty(max(end + FIELD_BYTES, LEAST_BYTES), dtype=torch.uint8, device="cuda")
            self.seal()
            self._furthest = end
        words = [torch.arange(start, stop) for start, stop in guards]
        self._guards = (torch.cat(words) if words else torch.empty(0, dtype=torch.int64)).to("cuda", non_blocking=True)
        return offsets

    def poison(self, byte: int) -> None:
        """Fill the buffers and the guards between them."""
        self._byte = byte
        self.block[FIELD_BYTES : self._end].fill_(byte)

    def overrun(self) -> Tensor:
        """A 0-dim bool tensor: whether a guard was written since `poison`."""
        word = _word(self._byte)
        return (self.block.view(torch.int64).index_select(0, self._guards) != word).any()

    def field_overrun(self) -> Tensor:
        """A 0-dim bool tensor: whether anything outside all buffers since `seal` was written."""
        words, word = self.block.view(torch.int64), _word(FIELD_POISON)
        return (words[: FIELD_BYTES // 8] != word).any() | (words[self._furthest // 8 :] != word).any()


def _word(byte: int) -> int:
    """Eight equal bytes as an int64."""
    return int.from_bytes(bytes([byte]) * 8, "little", signed=True)


class Modules:
    """Loaded machine code by content, so that candidates of a group load a shared kernel once."""

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._functions: dict[tuple[bytes, int], tuple[int, int]] = {}

    def function(self, kernel: CompiledKernel) -> int:
        """The driver's handle of a compiled kernel."""
        key = (kernel.cubin, kernel.shared_bytes)
        if key not in self._functions:
            self._functions[key] = cuda_driver.load(kernel.cubin, kernel.name, kernel.shared_bytes)
        return self._functions[key][1]

    def trim(self) -> None:
        """Unload everything if there are too many. Only between candidates: live graphs use what they captured."""
        if len(self._functions) > self._most:
            torch.cuda.synchronize()
            for module, _ in self._functions.values():
                cuda_driver.unload(module)
            self._functions.clear()
