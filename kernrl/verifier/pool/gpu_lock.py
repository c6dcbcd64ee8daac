"""Who may use a GPU when: correctness together, timing alone, and other programs of this kind not at all meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path


class Gate:
    """Readers together or one writer alone, writers first, under a file lock named by the GPU's UUID.

    The file lock is held while anybody is inside, so that two programs take turns; the kernel lets go of it should this
    one die.
    """

    def __init__(self, uuid: str):
        runtime = Path(f"/run/user/{os.getuid()}")
        folder = runtime if runtime.is_dir() and os.access(runtime, os.W_OK) else Path(tempfile.gettempdir())
        self._path = folder / f"kernrl-{os.getuid()}-{uuid}.lock"
        self._changed = threading.Condition()
        self._sharing = self._waiting = 0
        self._taken = False
        self._descriptor: int | None = None

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Use the GPU beside others of this program."""
        with self._changed:
            while self._taken or self._waiting:
                self._changed.wait()
            self._lock()
            self._sharing += 1
        try:
            yield
        finally:
            with self._changed:
                self._sharing -= 1
                self._unlock_if_empty()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Use the GPU with nobody beside."""
        with self._changed:
            self._waiting += 1
            try:
                while self._taken or self._sharing:
                    self._changed.wait()
                self._lock()
                self._taken = True
            finally:
                self._waiting -= 1
        try:
            yield
        finally:
            with self._changed:
                self._taken = False
                self._unlock_if_empty()

    def _lock(self) -> None:
        if self._descriptor is None:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._descriptor = descriptor

    def _unlock_if_empty(self) -> None:
        if not self._sharing and not self._taken and self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._changed.notify_all()


class Inside:
    """The gate of one who holds the GPU alone already."""

    def shared(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def alone(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()
