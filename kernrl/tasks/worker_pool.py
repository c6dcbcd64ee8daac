"""Processes that make tasks and pairs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from kernrl.signals import blocked_interrupts

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]


@contextmanager
def worker_pool(workers: int) -> Iterator[Map]:
    """A map over so many fresh processes, in order. Ctrl-C does not reach them; left early, what waits is not begun."""
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:

        def mapped(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
            with blocked_interrupts():  # the first items start the processes
                return pool.map(function, items)

        try:
            yield mapped
        finally:
            pool.shutdown(cancel_futures=True)
