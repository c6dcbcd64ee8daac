"""What of a plan's memory the second-level cache still holds when the next node reads it."""

from __future__ import annotations

from kernrl.verifier.base.devices import Device

KEPT_SHARE = 0.6
"""Of the cache, what data outlives: it is in two halves, and what is read in both is there twice."""


class CacheContents:
    """Whole storages, the least recently used ones leaving first. A storage that is larger than the cache leaves nothing."""

    def __init__(self, device: Device) -> None:
        self.capacity = device.l2_mib * (1 << 20) * KEPT_SHARE
        self._held: dict[int, float] = {}

    def share(self, storage: int) -> float:
        """The part of a storage that is there: all or nothing."""
        return float(storage in self._held)

    def touch(self, storage: int, nbytes: float) -> None:
        """Note that a storage was read or written."""
        self._held.pop(storage, None)
        self._held[storage] = nbytes
        while sum(self._held.values()) > self.capacity:
            del self._held[next(iter(self._held))]
