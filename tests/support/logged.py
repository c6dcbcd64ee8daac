"""What is logged in a test, in place of the caplog of pytest's plugin, which costs milliseconds in every test."""

from __future__ import annotations

import logging


class Logged(logging.Handler):
    """Keeps every record that reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def text(self) -> str:
        """All of it, with tracebacks."""
        return "\n".join(map(self.format, self.records))
