"""CUDA graphs of a decoding step: each is captured after the step has run once, and replayed from then on."""

from __future__ import annotations

import contextlib
import functools
import logging
import warnings
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any

import torch

log = logging.getLogger(__name__)

_ONE_CAPTURE = Lock()
"""Held during a capture or the start of a replay: torch's global generator takes part in all, and knows of one capture."""


class StepGraphs:
    """Runs steps, as graphs where they can be captured. Where one cannot, this is logged, and steps run as they are.

    Args:
        generator: what steps draw from. It may be seeded anew between steps.
    """

    def __init__(self, generator: torch.Generator):
        self._generator = generator
        self._graphs: dict[Hashable, Any] = {}
        self._capturing = can_capture(generator.device)

    def run(self, kind: Hashable, step: Callable[[], None]) -> None:
        """Run `step`, which for one `kind` reads and writes the same memory each time, until `forget`."""
        if (graph := self._graphs.get(kind)) is not None:
            with _ONE_CAPTURE:
                graph.replay()
            return
        step()  # uncaptured, which loads its kernels
        if not self._capturing:
            return
        try:
            self._graphs[kind] = self._captured(step)
        except Exception as error:  # of any kind, from whatever the model's code does; the step itself has just run
            self._capturing = False
            self.forget()  # their generator may be another now
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            log.warning("decoding goes on without CUDA graphs, more slowly: a step could not be captured (%s)", reason)

    def _captured(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None  # shared, as graphs run one at a time
        with contextlib.suppress(torch.OutOfMemoryError):
            return capture(step, self._generator, pool)
        self.forget()
        torch.cuda.empty_cache()  # a capture cannot use memory that torch keeps for others
        return capture(step, self._generator)

    def forget(self) -> None:
        """Drop all graphs: the memory that they read or write is no longer what steps use."""
        if self._graphs and self._generator.device.type == "cuda":
            torch.cuda.current_stream(self._generator.device).synchronize()  # one may still run
        self._graphs.clear()


def can_capture(device: torch.device) -> bool:
    return device.type == "cuda"


def capture(run: Callable[[], None], generator: torch.Generator, pool: Any = None) -> torch.cuda.CUDAGraph:
    """A graph of what `run` starts on the current GPU, which is only noted and not done.

    Not by `torch.cuda.graph`, which waits for the whole GPU and gives all free memory back to it. Other threads may use the GPU
    meanwhile, but neither wait for all of it nor draw from its global generator.

    Args:
        run: has run before, because libraries cannot be initialised here.
        generator: what `run` draws from; a replay draws on from where it is then.
        pool: the memory of a graph that never runs at the same time; None for memory of its own.

    Raises:
        Exception: what `run` or CUDA raised. Nothing is left behind, but `generator` is no longer that of earlier graphs.
    """
    device = generator.device
    side, present = side_stream(device), torch.cuda.current_stream(device)
    graph, pool = torch.cuda.CUDAGraph(), pool or torch.cuda.graph_pool_handle()
    with _ONE_CAPTURE:
        graph.register_generator_state(generator)
        side.wait_stream(present)  # before it captures, torch writes there what replays read: the generator's seed and offset
        with torch.cuda.stream(side):
            try:
                graph.capture_begin(pool, capture_error_mode="thread_local")
                run()
                graph.capture_end()
            except BaseException:
                _end_failed(graph, generator, pool)
                raise
        present.wait_stream(side)
    return graph


@functools.cache
def side_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures, since cuBLAS keeps a workspace for every stream that it has seen."""
    return torch.cuda.Stream(device)


def _end_failed(graph: torch.cuda.CUDAGraph, generator: torch.Generator, pool: Any) -> None:
    """End a capture that failed. Where CUDA has given it up, torch leaves its allocator and generators as in a capture: the
    next random number would fail, and memory that is free would be missing."""
    device = generator.device.index
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the graph is empty
        try:
            graph.capture_end()
            return
        except RuntimeError:
            pass
    with contextlib.suppress(RuntimeError):  # this is done already
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    for stuck in (generator, torch.cuda.default_generators[device]):
        stuck.graphsafe_set_state(stuck.clone_state())
