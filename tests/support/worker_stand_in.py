"""A trusted worker for tests of the transport."""

from __future__ import annotations

import os
import time

import torch

from kernrl.errors import InfrastructureError, UsageError

ERRORS = {
    "usage": UsageError,
    "memory": torch.OutOfMemoryError,
    "broken": InfrastructureError,
    "odd": ZeroDivisionError,
}


class Worker:
    def __init__(self, word: str):
        self._word, self._usable = word, True

    def healthy(self) -> bool:
        return self._usable

    def greet(self, name: str) -> tuple[str, int, str]:
        """A greeting, and who gives it on which device."""
        return f"{self._word} {name}", os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]

    def fail(self, error: str) -> None:
        raise ERRORS[error]("as asked. GPU 0 has a total capacity of nothing" if error == "memory" else "as asked")

    def spoil(self) -> None:
        self._usable = False
        raise ValueError("it is broken now")

    def hang(self) -> None:
        time.sleep(60)
