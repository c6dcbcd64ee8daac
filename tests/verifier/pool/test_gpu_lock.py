"""Who may use a GPU at once. What must not happen is given some time to happen."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

from kernrl.verifier.pool.gpu_lock import GpuLock

GRACE_S = 0.05


class Holders:
    """Threads that take a lock, and how many hold it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.inside = 0
        self.leave = threading.Event()

    def enter(self, take: Callable[[], AbstractContextManager[None]]) -> None:
        with take():
            with self._changed:
                self.inside += 1
                self._changed.notify_all()
            self.leave.wait()
            with self._changed:
                self.inside -= 1

    def settles_at(self, count: int) -> bool:
        with self._changed:
            reached = self._changed.wait_for(lambda: self.inside >= count, 10)
        time.sleep(GRACE_S)
        return reached and self.inside == count


def test_any_number_share() -> None:
    lock, room = GpuLock(str(uuid.uuid4())), Holders()
    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(room.enter, lock.shared)
        assert room.settles_at(8)
        room.leave.set()
    assert room.inside == 0


def test_the_exclusive_holder_is_alone() -> None:
    lock, room, timing = GpuLock(str(uuid.uuid4())), Holders(), Holders()
    with ThreadPoolExecutor(4) as pool:
        pool.submit(room.enter, lock.shared)
        assert room.settles_at(1)
        pool.submit(timing.enter, lock.exclusive)
        assert timing.settles_at(0)
        room.leave.set()
        assert timing.settles_at(1)
        pool.submit(room.enter, lock.shared)
        assert room.settles_at(0)
        timing.leave.set()
    assert room.inside == timing.inside == 0
