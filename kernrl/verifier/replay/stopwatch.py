"""Device time of programs in turn: CUDA events, a cold L2, fresh inputs and poisoned buffers before every call."""

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
"""Flushes before a block's first call, some 30 µs each: the GPU must not be done with the start event before the program after
it is queued, or the wait would count as the program's."""

NULL_PAIRS, NULL_ROUNDS = 100, (0, 1, 2, 4, 40)
"""Comparisons of the same program with itself that noise is calibrated by, at each of these lengths (`Stopwatch.null`)."""

Sizes = list[tuple[float, list[list[timing.Block]]]]
"""(µs, the blocks of each comparison) a size."""


@dataclass(slots=True)
class Timed:
    """A program that can be replayed and timed."""

    before: Callable[[], None]
    """Untimed, before each call."""
    run: Callable[[], None]
    after: Callable[[], None] = lambda: None
    """Untimed, after each call."""


class Stopwatch:
    """Times programs on the current stream; the caller sees to it that the GPU has nothing else to do."""

    def __init__(self) -> None:
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
        self._flush = torch.empty(2 * l2_bytes, dtype=torch.uint8, device="cuda")
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def compare(self, baseline: Timed, candidate: Timed, noise: timing.NoiseBand) -> list[timing.Block]:
        """Paired blocks of two programs, as many as it takes (`timing.look`)."""
        # who goes first takes turns: a first call is like no other, and the very first is to the candidate's disadvantage
        turns = itertools.cycle(([candidate, baseline, baseline, candidate], [baseline, candidate, candidate, baseline]))

        def timed(orders: list[list[Timed]]) -> list[list[tuple[bool, float]]]:
            us = iter(self.time([program for order in orders for program in order]))
            return [[(program is candidate, next(us)) for program in order] for order in orders]

        def blocks(count: int, calls: int) -> list[timing.Block]:
            return [self._block(block) for block in timed([next(turns) * calls for _ in range(count)])]

        [first] = timed([next(turns)])
        if timing.far_slower([us for mine, us in first if not mine], [us for mine, us in first if mine]):
            return [self._block(first)]
        return timing.look(blocks, noise, self._block(first))

    @staticmethod
    def _block(calls: list[tuple[bool, float]]) -> timing.Block:
        """Means of the baseline's and of the candidate's calls: (whether it is the candidate's, µs) each."""
        mine, others = ([us for whose, us in calls if whose is asked] for asked in (True, False))
        return sum(others) / len(others), sum(mine) / len(mine)

    def time(self, order: Sequence[Timed]) -> list[float]:
        """Device µs of each program in turn, each on fresh inputs, a cold L2 and poisoned buffers."""
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
        """Device µs of each step of one run, warm from the step before."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(steps) + 1)]
        for _ in steps:
            self._flush.zero_()  # work enough that every step is queued before the first begins
        events[0].record()
        for step, event in zip(steps, events[1:], strict=True):
            step()
            event.record()
        events[-1].synchronize()
        return [a.elapsed_time(b) * 1e3 for a, b in itertools.pairwise(events)]

    def null(self, pairs: int, rounds: Sequence[int], noise: timing.NoiseBand, slowdown: float = 0.0) -> Sizes:
        """Same against same through the very path that times candidates: (µs, the blocks of each comparison) a size.

        `rounds` sizes the programs: passes a pointwise kernel makes over 64 MiB (0: one over 4 MiB). With `slowdown`, the
        second program of a pair works on that much more data.
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
    """Memory that graphs share for what they allocate within: none may run beside another, nor read what another left."""

    def __init__(self) -> None:
        self._first: torch.cuda.CUDAGraph | None = None

    def capture(self, run: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """`capture` within this memory."""
        if self._first is None:  # which does nothing, but a pool lasts only as long as a graph of it
            self._first = capture(lambda: torch.zeros(1, device="cuda"))
        return capture(run, self._first.pool())


def capture(run: Callable[[], Any], pool: Any = None) -> torch.cuda.CUDAGraph:
    """A graph of what `run` queues on the current stream, which must not be the default one; in a pool of its own, or a given
    one."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.current_stream().synchronize()
    graph.capture_begin(pool, capture_error_mode="thread_local")
    try:
        run()
    except BaseException:
        with contextlib.suppress(RuntimeError), warnings.catch_warnings():  # what went wrong first is what is told
            warnings.simplefilter("ignore")
            graph.capture_end()
        raise
    graph.capture_end()
    return graph
