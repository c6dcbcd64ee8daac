"""A trusted worker for tests of the transport."""

from __future__ import annotations

import os
import time
from pathlib import Path

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
        self._word, self._usable, self._last_words = word, True, ""

    def __del__(self) -> None:
        if self._last_words:
            Path(self._last_words).touch()

    def healthy(self) -> bool:
        return self._usable

    def greet(self, name: str) -> tuple[str, int, str]:
        """A greeting, and who gives it on which device."""
        return f"{self._word} {name}", os.getpid(), os.environ["CUDA_VISIBLE_DEVICES"]

    def fail(self, error: str) -> None:
        raise ERRORS[error]("as asked. GPU 0 has a total capacity of nothing" if error == "memory" else "as asked")

    def spoil(self, last_words: str = "") -> None:
        """Break; whoever destroys this object afterwards makes the file `last_words`."""
        self._usable, self._last_words = False, last_words
        raise ValueError("it is broken now")

    def hang(self) -> None:
        time.sleep(60)
