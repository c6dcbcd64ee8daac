"""The replay process: runs plans on secret inputs, passes on outputs, and times. It never holds the right answers.

Baselines are timed here, too, interleaved with the candidate on the same GPU by the same clock. They run only after the
candidate has run on the draws that are judged first, and on inputs that no judged run uses.
"""

from __future__ import annotations

import contextlib
import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernrl.errors import UsageError
from kernrl.tasks.task import FULL
from kernrl.verifier.base import cuda_driver
from kernrl.verifier.base.clock import Clock, Spent
from kernrl.verifier.base.gpu_memory_limit import limit_gpu_memory
from kernrl.verifier.base.precision import policy_flags
from kernrl.verifier.base.shared_memory import SharedMemory
from kernrl.verifier.judge.compare import differ
from kernrl.verifier.judge.decoys import BOUND_FILLS, function_names, idle_launches, telling, without_bounds
from kernrl.verifier.judge.inputs import POISONS, TaskInputs
from kernrl.verifier.replay import timing
from kernrl.verifier.replay.compiled_reference import MODES, CompiledReference, warm_up
from kernrl.verifier.replay.device_memory import DeviceMemory, Modules
from kernrl.verifier.replay.job import Job, Measured, Replayed
from kernrl.verifier.replay.runner import Opened, Runner
from kernrl.verifier.replay.shared_outputs import SharedOutputs, shared_bytes
from kernrl.verifier.replay.spot_checks import SpotChecks
from kernrl.verifier.replay.stopwatch import GraphPool, Sizes, Stopwatch, Timed
from kernrl.verifier.rpc.answers import may_lack_memory

CUDNN_CANDIDATES = 5
"""Algorithms that cuDNN may try for a shape; more take tenths of a second for each shape and rarely win. Three instead of five
saved 10 of 36 ms on an H200, but made 4 of 35 references slower, one of them 2.5 times."""

MOST_PREPARED, PREPARED_SHARE = 256, 0.25
"""Most input sets that are kept, and their share of the memory that may be held."""


@dataclass(slots=True)
class _Prepared:
    """One input set of a task, kept for the task's next candidates."""

    inputs: TaskInputs
    baselines: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Graphs captured on these inputs, by name."""
    compiled: dict[str, CompiledReference] = field(default_factory=dict)
    """References that have been compiled for them and wait to be captured."""


class ReplayServer:
    """The replay process's commands. One candidate at a time: `begin`, `check` as often as wanted, `measure`."""

    def __init__(self, *, share: bool = True, redraw_parameters: bool = True, memory_share: float = 0.2):
        """`memory_share`: of the GPU's memory that is free now, to hold between candidates."""
        torch.cuda.set_stream(torch.cuda.Stream())  # graphs cannot be captured on the default stream
        torch.backends.cudnn.benchmark_limit = CUDNN_CANDIDATES
        cuda_driver.forbid_persisting_l2()
        self._redraw = redraw_parameters
        self.memory, self._modules, self.outputs = DeviceMemory(), Modules(), SharedOutputs(on_device=share)
        self._prepared: OrderedDict[tuple[str, ...], _Prepared] = OrderedDict()
        """Least recently used first."""
        self._last: tuple[str, ...] | None = None
        """The last candidate's task."""
        self._candidate_pool, self._baseline_pool = GraphPool(), GraphPool()
        self._gpu_bytes = torch.cuda.get_device_properties(0).total_memory
        self._held_bytes = cuda_driver.granted_bytes(memory_share)
        self._stopwatch, self._clock = Stopwatch(), Clock()
        self._full: Opened | None = None
        self._suspects: list[str] | None = None
        """Kernels that seem decoys so far; None before the first look."""
        self._spot: SpotChecks | None = None

    def healthy(self) -> bool:
        """Whether CUDA still works here."""
        return cuda_driver.works()

    def warm_up(self) -> None:
        """Make ready for the first `compile`."""
        warm_up()

    # --- correctness ---------------------------------------------------------------------------------------------

    def begin(self, job: Job, most_bytes: int | None = None) -> tuple[SharedMemory, tuple[str, ...]]:
        """Start a candidate, for which this process may take so much of the GPU's memory. Returns the memory of its outputs,
        which the judge opens again if its version has changed, and which of its task's baselines have been kept."""
        # what belongs to the last candidate, its outputs and a copy of its inputs among it, goes before memory is counted
        self.job, self._full, self._suspects, self._spot = job, None, None, None
        self._clock.restart()
        self._modules.trim()
        crowded = self._make_room()
        if (need := max(job.held_bytes.values())) > self._gpu_bytes:
            raise torch.OutOfMemoryError(f"it asks for {need >> 20} MiB of memory, and the GPU has {self._gpu_bytes >> 20}")
        large = need > PREPARED_SHARE * self._held_bytes
        if large:  # its memory is planned, and the last candidate's is no part of that
            self.memory.shrink(max(job.temporary_bytes.values()))
            self._candidate_pool = GraphPool()  # a pool keeps what its graphs have taken, the last candidate's included
        limit_gpu_memory(None if most_bytes is None else most_bytes - shared_bytes(job), self.forget)
        torch.cuda.reset_peak_memory_stats()
        self.memory.seal()
        self.outputs.reserve(shared_bytes(job), spare=not crowded and not large)
        self.outputs.clear()
        prepared = self._prepared.get(self._key(FULL))
        return self.outputs.shared, tuple(prepared.baselines) if prepared else ()

    def check(self, asked: Sequence[int]) -> Replayed:
        """Run the draws at these positions, one input set after another.

        Decoys are looked for in the first set; later calls for the same candidate check those found so far.
        """
        result = Replayed()
        flags: list[Tensor] = []
        names = list(dict.fromkeys(self.job.draws[i].input_set for i in asked))
        for name in names:
            positions = [i for i in asked if self.job.draws[i].input_set == name]
            inputs = self._task_inputs(name)
            opened = self._open(name, inputs)
            for i in positions:
                if name != FULL:
                    self._vary(opened.runner, i)
                flags += self._ask(opened, inputs, i, result)
                if name == FULL and self._full is None:
                    opened = self._full = self._captured(opened.runner)
            if name == names[0] and self.job.decoys and self._suspects != []:
                for finite in telling([self.job.draws[i] for i in positions])[:1]:
                    self._suspects = self._decoys(opened.runner, inputs, positions[finite])
        result.decoys = self._suspects or []
        return self._replayed(result, flags)

    def _replayed(self, result: Replayed, flags: list[Tensor]) -> Replayed:
        """Wait for everything queued, and note which draws raised a flag."""
        *raised, field = torch.stack([*flags, self.memory.field_overrun()]).tolist()
        if self.job.overwrites:
            result.written = [i for i, bad in zip(result.asked, raised[::2], strict=True) if bad]
            result.overrun = [i for i, bad in zip(result.asked, raised[1::2], strict=True) if bad] + result.asked[-1:] * field
        return result

    def _open(self, name: str, inputs: TaskInputs) -> Opened:
        """One input set's plan, ready to run; the full set's, after its first run, as a graph that timing uses, too."""
        if name == FULL and self._full is not None:
            return self._full
        runner = Runner(self.job.plans[name], self.job.kernels[name], inputs, self.memory, self._modules)
        if name == FULL and any(runner.variants(node) > 1 for node in range(len(runner.choice))):
            inputs.refresh()
            runner.prepare(POISONS[1])
            self._run(runner, autotune=True)
            with policy_flags(self.job.precision, autotune=True), torch.no_grad():
                self._choose(runner)
        return Opened(runner, lambda: self._run(runner, autotune=name == FULL), runner.outputs)

    def _run(self, runner: Runner, *, autotune: bool) -> None:
        with policy_flags(self.job.precision, autotune=autotune), torch.no_grad():
            runner.run()

    def _captured(self, runner: Runner) -> Opened:
        """A plan as a graph. It must have run before, since libraries cannot be initialised during capture."""
        runner.forget()
        with policy_flags(self.job.precision, autotune=True), torch.no_grad():
            graph = self._graph(self._candidate_pool, runner.run)
        outputs, alive = runner.held()
        return Opened(runner, graph.replay, lambda: outputs, alive)

    def _graph(self, pool: GraphPool, run: Callable[[], Any]) -> torch.cuda.CUDAGraph:
        """A graph of what has run before. It allocates memory of its own, and nothing can be given back meanwhile: where much
        is cached, that goes first."""
        if torch.cuda.memory_reserved() > self._held_bytes:
            torch.cuda.empty_cache()
        return pool.capture(run)

    def _ask(self, opened: Opened, inputs: TaskInputs, i: int, result: Replayed) -> list[Tensor]:
        """One draw: new inputs, poisoned memory, one run, outputs to the judge. Returns two flags, without a sync."""
        with self._clock.at("draw"):
            inputs.draw(self.job.draws[i])
            snapshot = inputs.snapshot()
        with self._clock.at("run"):
            opened.runner.prepare(POISONS[i % 2] if self.job.poison else 0)
            opened.run()
            result.asked.append(i)
            result.shown.append([self.outputs.put(y) for y in opened.outputs()])
        return [inputs.written(snapshot), self.memory.overrun()]

    @staticmethod
    def _vary(runner: Runner, i: int) -> None:
        """Draws at small shapes cycle through the variants of autotuned launches: every configuration must be right."""
        runner.choice = [i % runner.variants(node) for node in range(len(runner.choice))]

    def _decoys(self, runner: Runner, inputs: TaskInputs, draw: int) -> list[str]:
        """Names of authored launches without which the outputs are the same.

        Tried on the draw, whose inputs are finite, on 64 times them and on a thousandth (a clamp may otherwise have no effect),
        each with memory of zeros (a skipped launch may have made indices, and 0 is in range) and of another number.
        """
        drawn = self.job.draws[draw]
        inputs.draw(drawn)

        def conditions() -> Iterator[tuple[int, bool]]:
            for factor in (1.0, 64.0, 2.0**-16):  # each on top of the one before
                inputs.scale(factor)
                yield from ((poison, drawn.own and factor == 1.0) for poison in (0, POISONS[1]))

        def unchanged(condition: tuple[int, bool], launches: Sequence[int]) -> list[bool]:
            poison, own = condition
            return self._unchanged(runner, launches, poison, finite=not own)

        def is_bound(launches: list[int]) -> list[bool]:
            inputs.draw(drawn)
            whole = self._outputs(runner, None, BOUND_FILLS[-1])
            changed: list[Tensor] = []
            for launch in launches:
                near, far = (self._outputs(runner, launch, poison) for poison in BOUND_FILLS)
                changed.append(self._differ(whole, far, finite=False) & ~self._differ(near, far, finite=False))
            return torch.stack(changed).tolist()

        idle = idle_launches(runner.authored, conditions(), unchanged)
        return function_names(runner.plan, without_bounds(runner.plan, idle, is_bound))

    def _unchanged(self, runner: Runner, launches: Sequence[int], poison: int, *, finite: bool) -> list[bool]:
        """For each launch, whether the outputs (their elements that are `finite`) are the same without it, in such memory."""
        whole = self._outputs(runner, None, poison)
        changed = [self._differ(whole, self._outputs(runner, launch, poison), finite=finite) for launch in launches]
        return [not differs for differs in torch.stack(changed).tolist()]

    def _outputs(self, runner: Runner, skip: int | None, poison: int) -> list[Tensor]:
        """The outputs without a launch, in memory of such bytes."""
        runner.prepare(poison)
        with policy_flags(self.job.precision), torch.no_grad():
            runner.run(skip=skip)
        return [y.clone() for y in runner.outputs()]

    def _differ(self, some: Sequence[Tensor], others: Sequence[Tensor], *, finite: bool) -> Tensor:
        """Whether any output differs: a 0-dim bool, without a sync.

        By value, not by bits: a result that is multiplied by zero, or rounded away, can still change the sign of a zero.
        """
        pairs = zip(some, others, strict=True)
        return torch.stack([differ(a, b, self.job.precision, finite=finite) for a, b in pairs]).any()

    # --- timing --------------------------------------------------------------------------------------------------

    def time_candidate(self, baselines: Sequence[str], noise: timing.NoiseBand) -> Measured:
        """Time the candidate against all baselines in interleaved blocks.

        Some timed calls, chosen at random, compute a draw that is judged, and so does one more call after the last: a kernel
        that recognises timed calls, or counts them, is judged on what it did in them (`spot_checked`).
        """
        begun = torch.cuda.Event(enable_timing=True)
        begun.record()
        with self._clock.at("ready to time"):
            inputs = self._task_inputs(FULL)
            opened = self._open(FULL, inputs)
            draws, judged = self.job.all_draws, self.job.spot_checks
            positions = range(len(self.job.draws), len(draws))
            spot = SpotChecks(opened, inputs, draws, positions, self.outputs, self.memory, judged)
        candidate = Timed(spot.before, opened.run, spot.after)
        others = {name: Timed(inputs.refresh, self._baseline(name, inputs)) for name in baselines}
        alike: list[timing.Block] = []
        if self.job.at_length and others:
            with self._clock.at("time at length"):
                blocks, alike = self._stopwatch.compare_at_length(others, candidate)
        else:
            with self._clock.at("time"):
                blocks = self._stopwatch.compare(others, candidate, noise)
        with self._clock.at("time nodes"):
            node_us, unfused = self._node_times(opened.runner) if opened.runner.computed else ([], 0.0)
        self._spot = spot
        ended = torch.cuda.Event(enable_timing=True)
        ended.record()
        ended.synchronize()
        return Measured(blocks, node_us, unfused, opened.runner.choice, begun.elapsed_time(ended) / 1e3, alike)

    def spot_checked(self) -> Replayed:
        """Results of the judged calls in `time_candidate`, and of one more call, which other lanes need not wait for."""
        assert self._spot
        self._spot.last()
        return self._replayed(self._spot.result, self._spot.flags)

    def _choose(self, runner: Runner) -> None:
        """Autotune on the trusted side: choose each launch's variant with the shorter of two cold calls."""
        for node in range(len(runner.choice)):
            if runner.variants(node) == 1:
                continue
            times = []
            for variant in range(runner.variants(node)):
                runner.choice[node] = variant
                program = Timed(lambda: None, lambda node=node: runner.run_node(node))
                try:
                    times.append(min(self._stopwatch.time([program, program])))
                except cuda_driver.CudaError:
                    times.append(float("inf"))
            runner.choice[node] = times.index(min(times))

    def _node_times(self, runner: Runner) -> tuple[list[float], float]:
        """Device µs of every node of one run, in order, and the share of time outside the authored launches."""
        with policy_flags(self.job.precision, autotune=True), torch.no_grad():
            runner.prepare(POISONS[1])
            runner.forget()
            us = self._stopwatch.steps([lambda i=i: runner.run_node(i) for i in range(len(runner.plan.nodes))])
        return us, sum(us[i] for i in runner.computed) / max(sum(us), 1e-9)

    def compile(self, baselines: Sequence[str]) -> None:
        """Compile the task's baselines, unless they are kept already, while others use the GPU: nothing is run here. What a
        `TaskPreparer` has compiled is found on disk.

        What cannot be compiled yet, or at all, is left to `prepare`, which says why.
        """
        inputs, prepared = self._task_inputs(FULL), self._prepared[self._key(FULL)]
        for name in baselines:
            if name in MODES and name not in prepared.baselines and name not in prepared.compiled:
                prepared.compiled[name] = reference = CompiledReference(inputs.module, name)
                with policy_flags(self.job.precision, autotune=True), torch.no_grad(), contextlib.suppress(Exception):
                    reference.compile(inputs.arguments)

    def prepare(self, baselines: Sequence[str]) -> None:
        """Capture the task's baselines, unless they are kept already. Raises UsageError if the reference does not run."""
        inputs = self._task_inputs(FULL)
        for name in baselines:
            try:
                self._baseline(name, inputs)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                if may_lack_memory(str(error)):
                    raise torch.OutOfMemoryError(str(error)) from error
                raise UsageError(f"{self.job.task.id}: the reference cannot be timed ({name}): {error}") from error

    def _baseline(self, name: str, inputs: TaskInputs) -> Callable[[], None]:
        """The reference as a user would run it, `eager` or compiled, captured once for each task."""
        prepared = self._prepared[self._key(FULL)]
        kept = prepared.baselines
        if name not in kept:
            module: Any = inputs.module
            if name in MODES:
                module = prepared.compiled.pop(name, None) or CompiledReference(inputs.module, name)
            inputs.refresh()  # on judged inputs, its results would be right answers, which the next candidate could find
            with policy_flags(self.job.precision, autotune=True), torch.no_grad():
                module(*inputs.arguments)  # compiles, tunes, and initialises libraries
                inputs.settle()  # a graph must read no tensor that forward drops for another
                # its results are not read, so the next baseline may use the same memory
                graph = self._graph(self._baseline_pool, lambda: module(*inputs.arguments))
                inputs.settle()
            graph.replay()  # the first replay also uploads the graph, which must not be timed
            kept[name] = graph.replay
        return kept[name]

    def gpu_info(self) -> dict[str, str]:
        """The GPU's name, UUID, architecture and memory, and the driver's version."""
        p = torch.cuda.get_device_properties(0)
        return {
            "gpu": p.name,
            "uuid": str(p.uuid),
            "arch": f"sm_{p.major}{p.minor}",
            "memory_bytes": str(p.total_memory),
            "free_bytes": str(torch.cuda.mem_get_info()[0]),
            "driver": cuda_driver.version(),
        }

    def spent(self) -> Spent:
        """The peaks since `begin`, with the memory that the judge sees, and where the time went since then."""
        peak = torch.cuda.max_memory_allocated() - self._stopwatch.nbytes + self.outputs.nbytes
        return Spent(peak, torch.cuda.max_memory_reserved() + self.outputs.nbytes, self._clock.take())

    def null(self, pairs: int, rounds: Sequence[int], noise: timing.NoiseBand, slowdown: float = 0.0) -> Sizes:
        """`Stopwatch.null`."""
        return self._stopwatch.null(pairs, rounds, noise, slowdown)

    # --- what is kept --------------------------------------------------------------------------------------------

    def _key(self, name: str) -> tuple[str, ...]:
        """Identifies one input set of the current candidate's task."""
        task = self.job.task
        return (task.id, task.pytorch_code, self.job.precision, name)

    def _task_inputs(self, name: str) -> TaskInputs:
        """Inputs and state of one input set, kept for the group's other candidates while memory lasts."""
        key = self._key(name)
        if key not in self._prepared:
            input_set = self.job.task.input_set(name)
            assert input_set is not None
            while len(self._prepared) >= MOST_PREPARED or self._prepared_bytes() > PREPARED_SHARE * self._held_bytes:
                # not another set of this task: its baselines would have to be compiled again while everybody waits
                dropped = next((other for other in self._prepared if other[:-1] != key[:-1]), None)
                if dropped is None:
                    break
                del self._prepared[dropped]
            with self._clock.at("inputs"):
                made = TaskInputs(self.job.task, input_set, self.job.precision, "cuda", redraw_parameters=self._redraw)
            if torch.cuda.memory_reserved() > self._held_bytes:
                torch.cuda.empty_cache()  # what lives long would end up in large blocks that were needed to make them
            self._prepared[key] = _Prepared(made)
        self._prepared.move_to_end(key)
        return self._prepared[key].inputs

    def _prepared_bytes(self) -> int:
        return sum(one.inputs.nbytes for one in self._prepared.values())

    def _make_room(self) -> bool:
        """Drop everything kept if this process holds more memory than it may; returns whether it did.

        Not for another candidate of the last task, which would need as much again. Little is lost: with a few large tasks,
        most of the memory is in buffers that have grown and in fragments.
        """
        last, self._last = self._last, self._key(FULL)
        if last == self._last or torch.cuda.memory_reserved() + self.outputs.nbytes <= self._held_bytes:
            return False
        self.forget()
        return True

    def give_back(self) -> int:
        """Drop everything, between candidates, since another lane needs the room; the judge has closed the outputs' memory.
        Returns the bytes still held."""
        self.forget()
        self.outputs.shrink()
        return torch.cuda.memory_reserved() + self.outputs.nbytes

    def forget(self) -> None:
        """Drop what is kept of tasks, and the memory of plans."""
        self._prepared.clear()
        self._full = self._spot = None
        self._candidate_pool, self._baseline_pool = GraphPool(), GraphPool()
        self.memory.release()
        gc.collect()
        torch.cuda.empty_cache()
