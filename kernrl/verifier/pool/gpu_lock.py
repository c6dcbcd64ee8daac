"""Who may use a GPU when: correctness together, timing alone; other programs of this kind not meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol


class Lock(Protocol):
    """Shared or exclusive use of a GPU."""

    def shared(self) -> contextlib.AbstractContextManager[None]: ...

    def exclusive(self) -> contextlib.AbstractContextManager[None]: ...


class GpuLock:
    """A readers-writer lock that prefers writers, under a file lock named by the GPU's UUID.

    The file lock is held while this one is, so programs take turns; the kernel releases it if this one dies.
    """

    def __init__(self, uuid: str):
        runtime = Path(f"/run/user/{os.getuid()}")
        folder = runtime if runtime.is_dir() and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
        self._path = folder / f"kernrl-{os.getuid()}-{uuid}.lock"
        self._changed = threading.Condition()
        self._sharing = self._waiting = 0
        self._exclusive = False
        self._descriptor: int | None = None

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Use the GPU beside others of this program."""
        with self._changed:
            while self._exclusive or self._waiting:
                self._changed.wait()
            self._lock_file()
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._unlock_file_if_free()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Use the GPU alone."""
        with self._changed:
            self._waiting += 1
            try:
                while self._exclusive or self._sharing:
                    self._changed.wait()
                self._lock_file()
                self._exclusive = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._exclusive = False
                self._unlock_file_if_free()

    def _lock_file(self) -> None:
        if self._descriptor is None:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._descriptor = descriptor

    def _unlock_file_if_free(self) -> None:
        if not self._sharing and not self._exclusive and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._changed.notify_all()
