"""Stands in for a pool of processes where what they do is tested and not that they are processes: each imports torch anew."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any


def pool_of_threads(workers: int, *_: Any, **__: Any) -> ThreadPoolExecutor:
    """A pool with as many threads as `ProcessPoolExecutor` would have processes."""
    return ThreadPoolExecutor(workers)
