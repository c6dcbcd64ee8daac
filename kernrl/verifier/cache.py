"""The cache of verdicts, in SQLite. If it fails, that costs time, never a verdict."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from kernrl.tasks.task import Task, task_fingerprint
from kernrl.verifier.base.verdict import Status, Verdict

log = logging.getLogger(__name__)

_NOT_KEPT = frozenset((Status.INFRA_ERROR, Status.TIMEOUT))
"""Statuses that may differ the next time."""


def verdict_key(task: Task, candidate_sha: str, conditions: Sequence[str]) -> str:
    """One hash for task, candidate and conditions (precision, GPU, versions, baselines)."""
    return hashlib.sha256("\n".join([task_fingerprint(task), candidate_sha, *conditions]).encode()).hexdigest()


class VerdictCache:
    """Key → verdict, shared by processes. `path` None keeps nothing. A full disk or a locked file only causes a warning."""

    def __init__(self, path: Path | None):
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, timeout=5.0, check_same_thread=False, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, verdict TEXT, made REAL)")
        except (sqlite3.Error, OSError) as error:
            self._give_up(error)

    def get(self, key: str) -> Verdict | None:
        """The verdict kept under a key, marked as `cached`; None if there is none."""
        try:
            with self._lock:
                row = self._db.execute("SELECT verdict FROM verdicts WHERE key = ?", (key,)).fetchone() if self._db else None
            return Verdict.from_json(json.loads(row[0]) | {"cached": True}) if row else None
        except sqlite3.Error as error:
            self._give_up(error)
        except (ValueError, TypeError, KeyError):
            pass  # a row that another version wrote
        return None

    def put(self, key: str, verdict: Verdict) -> None:
        """Keep a verdict, unless it may differ the next time."""
        if verdict.status in _NOT_KEPT:
            return
        try:
            row = (key, json.dumps(verdict.to_json()), time.time())
            with self._lock:
                if self._db is not None:
                    self._db.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", row)
        except sqlite3.Error as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        log.warning("the verdict cache is disabled: %s", error)
        self.close()

    def close(self) -> None:
        with self._lock, contextlib.suppress(sqlite3.Error):
            if self._db is not None:
                self._db.close()
            self._db = None
