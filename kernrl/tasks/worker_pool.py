"""Processes that make tasks and pairs."""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from kernrl.signals import blocked_interrupts

Map = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]

_STARTING = threading.Lock()


@contextmanager
def apart_from_main() -> Iterator[None]:
    """Processes that start in this context do not import the program that starts them. What they run is kernrl's own, and a
    script without `if __name__ == "__main__"` would begin again in each of them."""
    main = vars(sys.modules["__main__"])
    with _STARTING:
        kept = {name: main[name] for name in ("__file__", "__spec__") if name in main}
        main.pop("__file__", None)
        main["__spec__"] = None
        try:
            yield
        finally:
            main.update(kept)


@contextmanager
def worker_pool(workers: int) -> Iterator[Map]:
    """A map over so many fresh processes, in order. Ctrl-C does not reach them; left early, what waits is not begun."""
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:

        def mapped(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
            with blocked_interrupts(), apart_from_main():  # the first items start the processes
                return pool.map(function, items)

        try:
            yield mapped
        finally:
            pool.shutdown(cancel_futures=True)
