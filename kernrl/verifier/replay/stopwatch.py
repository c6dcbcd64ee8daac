"""Device time of programs in turn, by CUDA events: each call has a cold L2, new inputs and poisoned buffers."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from kernrl.verifier.replay import timing

HEAD_START = 3
"""Flushes of about 30 µs before a block's first call: the GPU must not reach the start event before the program is queued, or
the wait would count as the program's time."""

MOST_LEAD, MOST_TRIES, TRIES_AT_MOST_LEAD = 32, 12, 3
"""Most flushes before one call; how often a call is made if the GPU reaches it before all of it is queued; and the same once
the lead is the most: a graph of thousands of nodes takes longer to queue than that."""

NULL_PAIRS, NULL_ROUNDS = 100, (0, 1, 2, 4, 40)
"""To calibrate noise: comparisons of a program with itself, at each of these lengths (see `Stopwatch.null`)."""

Blocks = list[timing.Block]

_BlockUs = tuple[list[float], list[float]]
"""µs of the baseline's and of the candidate's calls in a block."""

Sizes = list[tuple[float, list[Blocks]]]
"""(µs, the blocks of each comparison) for each size."""


@dataclass(slots=True)
class Timed:
    """A program that can be replayed and timed."""

    before: Callable[[], None]
    """Untimed, before each call."""
    run: Callable[[], None]
    after: Callable[[], None] = lambda: None
    """Untimed, after each call."""
    lead: int = 1
    """Flushes before each call. They keep the GPU at work while the call is queued; a large graph takes longer."""


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

    def compare(self, baselines: Mapping[str, Timed], candidate: Timed, noise: timing.NoiseBand) -> dict[str, Blocks]:
        """Paired blocks with each baseline, as many as it needs (`timing.Sampling`). Baselines share the candidate's calls."""
        numbers = itertools.count()

        def measured(wanted: Mapping[str, tuple[int, int]]) -> dict[str, list[_BlockUs]]:
            """For each baseline, so many more blocks, which repeat their calls so often."""
            found: dict[str, list[_BlockUs]] = {name: [([], []) for _ in range(n)] for name, (n, _) in wanted.items()}
            turns: list[tuple[int, list[str]]] = []  # which block of this round, and the baselines that still want it
            asked: list[tuple[list[Timed], list[int]]] = []
            for i, number in enumerate(itertools.islice(numbers, max((n for n, _ in wanted.values()), default=0))):
                for repeat in range(max(calls for n, calls in wanted.values() if i < n)):
                    names = [name for name, (n, calls) in wanted.items() if i < n and repeat < calls]
                    programs = [candidate, *(baselines[name] for name in names)]
                    turns.append((i, names))
                    asked.append((programs, timing.block_order(len(programs), number)))
            for (i, names), (mine, *others) in zip(turns, self._called(asked), strict=True):
                for name, us in zip(names, others, strict=True):
                    found[name][i][0].extend(us)
                    found[name][i][1].extend(mine)
            return found

        first = measured(dict.fromkeys(baselines, (1, 1)))
        pairs = {name: timing.Sampling(noise, *us) for name, [us] in first.items()}
        while wanted := {name: (n, pair.calls) for name, pair in pairs.items() if (n := pair.wanted())}:
            for name, blocks in measured(wanted).items():
                pairs[name].blocks += [timing.block_of(*us) for us in blocks]
        return {name: pair.blocks for name, pair in pairs.items()}

    def compare_at_length(self, baselines: Mapping[str, Timed], candidate: Timed) -> tuple[dict[str, Blocks], Blocks]:
        """Paired blocks with each baseline, and of the shortest program with itself, all in turns.

        The latter show how much equal programs seem to differ at this time (`timing.own_noise`).
        """
        numbers = itertools.count()
        pairs = [(baseline, candidate) for baseline in baselines.values()]

        def blocks(asked: Sequence[tuple[Timed, Timed]], calls: int) -> Blocks:
            order = timing.block_order(2, next(numbers)) * calls
            return [timing.block_of(other, mine) for mine, other in self._called([(pair[::-1], order) for pair in asked])]

        began = perf_counter()
        first = blocks(pairs, 1)  # warms them up
        round_us = 1e6 * (perf_counter() - began) * (len(pairs) + 1) / len(pairs)  # with all that is not timed
        us = [(us, program) for block, pair in zip(first, pairs, strict=True) for us, program in zip(block, pair, strict=True)]
        shortest_us, shortest = min(us, key=lambda one: one[0])
        calls = timing.calls_per_block(shortest_us)
        fewest, most = timing.rounds_at_length(shortest_us, calls * round_us)
        found: list[Blocks] = [[] for _ in [*pairs, shortest]]
        while len(found[-1]) < most:
            for kept, block in zip(found, blocks([*pairs, (shortest, shortest)], calls), strict=True):
                kept.append(block)
            if len(found[-1]) >= fewest and timing.all_clear(found[:-1], found[-1]):
                break
        return dict(zip(baselines, found[:-1], strict=True)), found[-1]

    def _called(self, asked: Sequence[tuple[Sequence[Timed], Sequence[int]]]) -> list[list[list[float]]]:
        """For programs and the order of their calls, each time: µs of the calls of each."""
        us = iter(self.time([programs[i] for programs, order in asked for i in order]))
        found: list[list[list[float]]] = []
        for programs, order in asked:
            found.append([[] for _ in programs])
            for i in order:
                found[-1][i].append(next(us))
        return found

    def time(self, order: Sequence[Timed]) -> list[float]:
        """Device µs of each program in turn, each with a cold L2, new inputs and poisoned buffers.

        A call that the GPU reaches before all of it is queued is made again: this process may be held up at any time, above all
        on a machine that traces and compiles meanwhile, and the GPU's wait for it is not the program's time.
        """
        while len(self._events) < len(order):
            self._events.append((self._event(), self._event()))
        for _ in range(HEAD_START):
            self._flush.zero_()
        for (start, stop), program in zip(self._events, order, strict=False):
            for late in range(MOST_TRIES if program.lead < MOST_LEAD else TRIES_AT_MOST_LEAD):
                if late > 1:  # once is chance
                    program.lead = min(2 * program.lead, MOST_LEAD)
                if self._queued_in_time(program, start, stop):
                    break
        self._wait()
        return [start.elapsed_time(stop) * 1e3 for start, stop in self._events[: len(order)]]

    def _queued_in_time(self, program: Timed, start: torch.cuda.Event, stop: torch.cuda.Event) -> bool:
        """Queue one call between two events. False where the GPU had passed the first before the second was queued."""
        program.before()
        for _ in range(program.lead):
            self._flush.zero_()
        start.record()  # pyright: ignore[reportCallIssue]
        program.run()
        stop.record()  # pyright: ignore[reportCallIssue]
        in_time = not start.query()
        program.after()
        return in_time

    def _event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)

    def _wait(self) -> None:
        torch.cuda.current_stream().synchronize()

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
            found = [self.compare({"first": twins[0]}, twins[1], noise)["first"] for _ in range(pairs)]
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
