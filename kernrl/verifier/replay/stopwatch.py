"""Device time of programs in turn, by CUDA events: each call has a cold L2, new inputs and poisoned buffers."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.replay import timing

HEAD_START = 3
"""Flushes of about 30 µs before a block's first call: the GPU must not reach the start event before the program is queued, or
the wait would count as the program's time."""

NULL_PAIRS, NULL_ROUNDS = 100, (0, 1, 2, 4, 40)
"""To calibrate noise: comparisons of a program with itself, at each of these lengths (see `Stopwatch.null`)."""

Sizes = list[tuple[float, list[list[timing.Block]]]]
"""(µs, the blocks of each comparison) for each size."""


@dataclass(slots=True)
class Timed:
    """A program that can be replayed and timed."""

    before: Callable[[], None]
    """Untimed, before each call."""
    run: Callable[[], None]
    after: Callable[[], None] = lambda: None
    """Untimed, after each call."""


class Stopwatch:
    """Times programs on the current stream; the caller makes sure that the GPU has nothing else to do."""

    def __init__(self) -> None:
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self._flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @property
    def nbytes(self) -> int:
        """What it holds of the GPU's memory."""
        return self._flush.nbytes

    def compare(self, baseline: Timed, candidate: Timed, noise: timing.NoiseBand) -> list[timing.Block]:
        """Paired blocks of two programs, as many as needed (`timing.sample_blocks`)."""
        # they take turns in going first: a first call is slower, and the very first one is the candidate's
        turns = itertools.cycle(([candidate, baseline, baseline, candidate], [baseline, candidate, candidate, baseline]))

        def timed(orders: list[list[Timed]]) -> list[list[tuple[bool, float]]]:
            us = iter(self.time([program for order in orders for program in order]))
            return [[(program is candidate, next(us)) for program in order] for order in orders]

        def blocks(count: int, calls: int) -> list[timing.Block]:
            return [self._block(block) for block in timed([next(turns) * calls for _ in range(count)])]

        [first] = timed([next(turns)])
        if timing.far_slower([us for mine, us in first if not mine], [us for mine, us in first if mine]):
            return [self._block(first)]
        return timing.sample_blocks(blocks, noise, self._block(first))

    @staticmethod
    def _block(calls: list[tuple[bool, float]]) -> timing.Block:
        """Means of the baseline's and of the candidate's calls. `calls` are (whether it is the candidate's, µs)."""
        mine, others = ([us for whose, us in calls if whose is asked] for asked in (True, False))
        return sum(others) / len(others), sum(mine) / len(mine)

    def time(self, order: Sequence[Timed]) -> list[float]:
        """Device µs of each program in turn, each with a cold L2, new inputs and poisoned buffers."""
        while len(self._events) < len(order):
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        for _ in range(HEAD_START):
            self._flush.zero_()
        for (start, stop), program in zip(self._events, order, strict=False):
            program.before()
            self._flush.zero_()
            start.record()
            program.run()
            stop.record()
            program.after()
        torch.cuda.current_stream().synchronize()
        return [start.elapsed_time(stop) * 1e3 for start, stop in self._events[: len(order)]]

    def steps(self, steps: Sequence[Callable[[], None]]) -> list[float]:
        """Device µs of each step of one run; caches stay warm from step to step."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
        for _ in steps:
            self._flush.zero_()  # enough work to queue every step before the first one begins
        events[0].record()
        for step, event in zip(steps, events[1:], strict=True):
            step()
            event.record()
        events[-1].synchronize()
        return [a.elapsed_time(b) * 1e3 for a, b in itertools.pairwise(events)]

    def null(self, pairs: int, rounds: Sequence[int], noise: timing.NoiseBand, slowdown: float = 0.0) -> Sizes:
        """A program against itself, timed as candidates are: (µs, the blocks of each comparison) for each size.

        `rounds` sets the size: passes of a pointwise kernel over 64 MiB (0: one over 4 MiB). With `slowdown`, the second
        program of a pair works on that much more data.
        """
        results = []
        for count in rounds:
            size = (16 if count else 1) << 20
            x = torch.randn(int(size * (1 + slowdown)), device="cuda")

            def chain(part: Tensor, count: int = count) -> None:
                for _ in range(max(count, 1)):
                    part.mul_(-1.0)

            twins = [Timed(lambda: None, capture(lambda part=part: chain(part)).replay) for part in (x[:size], x)]
            found = [self.compare(twins[0], twins[1], noise) for _ in range(pairs)]
            us = sorted(b for blocks in found for b, _ in blocks)
            results.append((us[len(us) // 2], found))
        return results


class GraphPool:
    """Memory that graphs share for their allocations: they must not run at the same time, nor read each other's results."""

    def __init__(self) -> None:
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """`capture`, with this memory."""
        if self._first is None:  # a pool lives as long as a graph that uses it, so keep a trivial one
            self._first = capture(lambda: torch.zeros(1, device="cuda"))
        return capture(run, self._first.pool())


def capture(run: Callable[[], Any], pool: Any = None) -> torch.cuda.CUDAGraph:
    """A graph of what `run` queues on the current stream, which must not be the default stream. `pool` None makes one."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.current_stream().synchronize()
    graph.capture_begin(pool, capture_error_mode="thread_local")
    try:
        run()
    except BaseException:
        with contextlib.suppress(RuntimeError), warnings.catch_warnings():  # the original error is raised again below
            warnings.simplefilter("ignore")
            graph.capture_end()
        raise
    graph.capture_end()
    return graph
