"""Which of a plan's storages the L2 cache still holds when the next node reads them."""

from __future__ import annotations

from kernrl.verifier.base.devices import Device

KEPT_SHARE = 0.6
"""Share of the cache that holds different data: it has two halves, and what both have read is there twice."""


class CacheContents:
    """Whole storages; the least recently used one leaves first. A storage larger than the cache leaves nothing there."""

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
