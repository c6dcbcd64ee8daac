"""How fast verdicts come, how they scale, and how often the clock is fooled by chance.

    python scripts/bench_verifier.py --count 1000 --out bench_verifier.json
    python scripts/bench_verifier.py --groups 16         # 8 candidates for each of 16 tasks, as reinforcement learning asks
    python scripts/bench_verifier.py --null 200          # same against same, and a planted 5 % slow-down
    python scripts/bench_verifier.py --plain 8           # beside an evaluator in KernelBench's manner
    python scripts/bench_verifier.py --cores 1 2 4 8 16  # scaling
    python scripts/bench_verifier.py --front 60          # core-milliseconds a candidate before the GPU, by part

Every candidate is a worked solution of a generated level-2 task, no two alike, and none from a cache. All but `--front` needs
a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kernrl.config import VerifierConfig
from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import device_for
from kernrl.verifier.compile.compiler import Compiler
from kernrl.verifier.interpret.interpret_server import SmallJob
from kernrl.verifier.interpreted_sets import interpreted
from kernrl.verifier.judge.draws import Seeds, schedule
from kernrl.verifier.plan.plan import Plan
from kernrl.verifier.plan.reading import Asked
from kernrl.verifier.pool.gpu_client import GpuClient
from kernrl.verifier.pool.interpreters import Interpreters
from kernrl.verifier.pool.local import cpu_fork_server
from kernrl.verifier.pool.plan_readers import PlanReaders
from kernrl.verifier.pool.task_facts import gather_facts
from kernrl.verifier.trace.tracer import Tracer
from kernrl.verifier.verifier import HardenedVerifier

Pair = tuple[Task, str]

BAD_REPLIES = ("There is nothing to fuse here.", "```python\nclass ModelNew(:\n```", "import os\nclass ModelNew:\n    pass")


def candidates(count: int, seed: int) -> list[Pair]:
    """Distinct (task, solution) pairs, a task's solutions together as a group's are."""
    pairs: list[Pair] = []
    seen: set[str] = set()
    for task in generate_tasks(level=2, count=count, seed=seed, precision="fp32"):
        for solution in task.solutions:
            if solution.triton_code not in seen and len(pairs) < count:
                seen.add(solution.triton_code)
                pairs.append((task, solution.triton_code))
        if len(pairs) == count:
            break
    return pairs


def groups(tasks: int, members: int, seed: int) -> list[Pair]:
    """`members` distinct candidates for each task: its solutions, and the same with other numbers of warps."""
    pairs: list[Pair] = []
    for task in generate_tasks(level=2, count=4 * tasks, seed=seed, precision="fp32"):
        texts = {s.triton_code: None for s in task.solutions}
        for warps in (8, 2, 1, 16):
            texts |= {re.sub(r"num_warps=\d+", f"num_warps={warps}", s.triton_code): None for s in task.solutions}
        if len(texts) >= members:
            pairs += [(task, text) for text in list(texts)[:members]]
        if len(pairs) == tasks * members:
            break
    return pairs


def throughput(verifier: HardenedVerifier, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Verdicts a second over the pairs, and where the time went."""
    begun, worked_s = time.perf_counter(), cpu_s()
    verdicts = dict(verifier.verify_many(pairs))
    wall_s, worked_s = time.perf_counter() - begun, cpu_s() - worked_s
    statuses = Counter(str(v.status) for v in verdicts.values())
    stages = sorted({name for v in verdicts.values() for name in v.seconds})
    # clocks of replay and judge, `replay: run`, are of larger tasks alone; other stages that a verdict lacks took no time
    shares = {n: [v.seconds.get(n, 0.0) for v in verdicts.values() if n in v.seconds or ": " not in n] for n in stages}
    seconds = {n: statistics.fmean(found) for n, found in shares.items()}
    wrong = [(pairs[i][0].id, str(v.status), v.reason[:300]) for i, v in verdicts.items() if not v.correct]
    speedups = [s.value for v in verdicts.values() if (s := v.speedup())]
    return {
        "verdicts": len(verdicts),
        "tasks": len({task.id for task, _ in pairs}),
        "wall_s": wall_s,
        "verdicts_per_s": len(verdicts) / wall_s,
        "core_s_per_verdict": worked_s / len(verdicts),
        "statuses": dict(statuses),
        "mean_seconds": seconds,
        "gpu_busy_ms_per_verdict": 1e3 * seconds.get("gpu_busy", 0.0),
        "median_speedup_x": statistics.median(speedups) if speedups else None,
        "not_correct": wrong[:50],
        "worst_excess": max((e["excess"] for v in verdicts.values() if v.correct for e in v.errors), default=0.0),
    }


def cpu_s() -> float:
    """Core-seconds that this process and all it started have worked; of those that ended, where somebody waited for them."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
            ticks[int(stat.parent.name)] = sum(int(n) for n in fields[11:15])
    todo, total = [os.getpid()], 0
    while todo:
        pid = todo.pop()
        todo += children.get(pid, [])
        total += ticks.get(pid, 0)
    return total / os.sysconf("SC_CLK_TCK")


def front(pairs: Sequence[Pair]) -> dict[str, float]:
    """Core-milliseconds a candidate for what comes before the GPU, one candidate after another; needs no GPU."""
    device = device_for("sm_90")
    assert device
    facts = {task.id: gather_facts(task, "fp32", device, on_gpu=True) for task, _ in pairs}
    tracer, compiler = Tracer(1), Compiler(1)
    found: dict[str, float] = {}

    def clocked(name: str, act: Callable[[], Any]) -> Any:
        begun = cpu_s()
        done = act()
        time.sleep(0.5)  # until the last child has been waited for
        found[name] = 1e3 * (cpu_s() - begun) / len(pairs)
        return done

    def read() -> list[list[Plan]]:
        plans: list[list[Plan]] = []
        for (task, _), one in zip(pairs, traced, strict=True):
            known = facts[task.id]
            found = readers.read(one.frames, Asked(known.specs, known.outputs, frozenset(), device, "fp32"))
            assert found.rejection is None, found.rejection
            plans.append(found.plans)
        return plans

    forks, slots = cpu_fork_server(), threading.BoundedSemaphore(1)
    readers = PlanReaders(1, forks, slots)
    tracer.trace(pairs[0][1], facts[pairs[0][0].id].specs)
    traced = clocked("trace", lambda: [tracer.trace(code, facts[task.id].specs) for task, code in pairs])
    readers.processes[0].start()
    planned = clocked("plan", read)
    tracer.close()
    mine = [interpreted(plans, on_gpu=True) for plans in planned]
    interpreters, seeds = Interpreters(1, {}, forks, slots), Seeds()

    def judged() -> None:
        for (task, _), plans in zip(pairs, mine, strict=True):
            draws = schedule(facts[task.id].sets, seeds.next(task.id))
            said = interpreters.judge(SmallJob(task, "fp32", plans, draws)) if plans else None
            assert said is None or said.rejection is None, said

    interpreters.judge(SmallJob(pairs[0][0], "fp32", mine[0], schedule(facts[pairs[0][0].id].sets, 0)))
    clocked("interpreter", judged)
    interpreters.close()
    readers.close()
    forks.close()
    kernels = [
        [kernel for plan in plans if plan.input_set not in asked for kernel in plan.kernels]
        for plans, asked in zip(planned, mine, strict=True)
    ]
    compiler.start()
    clocked("compile", lambda: [compiler.compile(asked, "sm_90") for asked in kernels])
    compiler.close()
    return found | {"kernels": sum(map(len, kernels)) / len(pairs)}


def rejections_ms(verifier: HardenedVerifier, task: Task) -> dict[str, float]:
    """Milliseconds for a reply that fails parse or screen."""
    times = []
    for i in range(60):
        begun = time.perf_counter()
        verdict = verifier.verify(task, BAD_REPLIES[i % 3] + f"\n# {i}")
        times.append(1e3 * (time.perf_counter() - begun))
        assert not verdict.correct
    return {"median": statistics.median(times), "max": max(times)}


def null(verifier: HardenedVerifier, pairs: int) -> dict[str, Any]:
    """False speedups of same against same, and how often 5 % is seen, over five durations."""
    gpu = verifier.evaluator.gpus[0]
    assert isinstance(gpu, GpuClient)
    same, slow = gpu.twins(pairs), gpu.twins(pairs, 0.05)
    long = slow[pairs:]  # the shortest program is all launch overhead
    return {
        "noise": asdict(gpu.noise),
        "comparisons": len(same),
        "false_speedups": sum(s.significant and s.value > 1 for s in same),
        "false_slowdowns": sum(s.significant and s.value < 1 for s in same),
        "planted": len(long),
        "planted_seen": sum(s.significant and s.value < 1 for s in long),
        "planted_short_seen": sum(s.significant and s.value < 1 for s in slow[:pairs]),
    }


def plain(pairs: Sequence[Pair]) -> list[float]:
    """Seconds a pair takes an evaluator in KernelBench's manner: a fresh process, 5 trials of correctness, 100 of time."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for task, code in pairs:
            reference, candidate = Path(folder, "reference.py"), Path(folder, "candidate.py")
            reference.write_text(task.pytorch_code)
            candidate.write_text(code)
            begun = time.perf_counter()
            subprocess.run([sys.executable, __file__, "--child", str(reference), str(candidate)], check=True)
            times.append(time.perf_counter() - begun)
    return times


def plain_child(reference: str, candidate: str) -> None:
    """One evaluation, in the process that runs the candidate: what this project exists to avoid."""
    import importlib.util

    import torch

    def load(path: str) -> Any:
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    theirs, mine = load(reference), load(candidate)

    def build(cls: Any) -> Any:
        torch.manual_seed(42)
        return cls(*theirs.get_init_inputs()).cuda()

    old, new = build(theirs.Model), build(mine.ModelNew)
    inputs: list[Any] = []
    with torch.no_grad():
        for trial in range(5):
            torch.manual_seed(trial)
            inputs = [x.cuda() if isinstance(x, torch.Tensor) else x for x in theirs.get_inputs()]
            torch.allclose(old(*inputs), new(*inputs), atol=1e-4, rtol=1e-4)
        scrap = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        for model in (new, old):
            for _ in range(103):
                scrap.zero_()
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                model(*inputs)
                stop.record()
                torch.cuda.synchronize()


def on_cores(cores: int, seed: int) -> dict[str, float]:
    """Verdicts a second with so many cores, machine code cold."""
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(everywhere)[:cores])
    try:
        # the GPU's noise is calibrated once for all counts
        folder = Path(tempfile.gettempdir(), f"kernrl-bench-{os.getpid()}")
        with HardenedVerifier(VerifierConfig(cache_dir=folder)) as verifier:
            verifier.evaluator.start()
            pairs = candidates(8 + 16 * cores, seed)
            throughput(verifier, pairs[:8])
            found = throughput(verifier, pairs[8:])
    finally:
        os.sched_setaffinity(0, everywhere)
    return {name: found[name] for name in ("verdicts", "verdicts_per_s", "core_s_per_verdict")}


class Results(dict[str, Any]):
    """Everything measured so far, printed and written part by part: a run cut short leaves something."""

    def __init__(self, out: Path | None):
        super().__init__(argv=sys.argv[1:], cores=len(os.sched_getaffinity(0)))
        self._out = out

    def keep(self, name: str, found: Any) -> None:
        self[name] = found
        wrong = found.pop("not_correct", []) if isinstance(found, dict) else []
        print(name, json.dumps(found), flush=True)
        for row in wrong:
            print("not correct:", *row, flush=True)
        if wrong:
            found["not_correct"] = wrong
        if self._out:
            self._out.write_text(json.dumps(self, indent=1))


def on_gpu(options: argparse.Namespace, pairs: Sequence[Pair], results: Results) -> None:
    """Throughput, rejections and the null, in one warm verifier."""
    with HardenedVerifier(VerifierConfig(cache=False)) as verifier:
        begun = time.perf_counter()
        verifier.evaluator.start()
        results.keep("start_s", time.perf_counter() - begun)
        results.keep("versions", verifier.evaluator.versions)
        if options.warm:
            throughput(verifier, candidates(options.warm, options.seed + 1))
        if options.count:
            results.keep("cold", throughput(verifier, pairs))
            results.keep("again", throughput(verifier, pairs))  # their machine code is known now, their verdicts are not
            results.keep("rejected_ms", rejections_ms(verifier, pairs[0][0]))
        if options.groups:
            results.keep("groups", throughput(verifier, groups(options.groups, 8, options.seed + 2)))
        if options.null:
            results.keep("null", null(verifier, options.null))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=0, help="distinct candidates to verify")
    parser.add_argument("--groups", type=int, default=0, help="tasks with eight candidates each")
    parser.add_argument("--warm", type=int, default=64, help="other candidates verified first")
    parser.add_argument("--null", type=int, default=0, help="same-against-same comparisons at each of five durations")
    parser.add_argument("--plain", type=int, default=0, help="candidates also given to the plain evaluator")
    parser.add_argument("--front", type=int, default=0, help="candidates whose way to the GPU is clocked")
    parser.add_argument("--cores", type=int, nargs="*", default=[], help="core counts for the scaling table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON with everything measured")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        plain_child(*options.child)
        return
    results = Results(options.out)
    if options.front:
        results.keep("front", front(candidates(options.front, options.seed + 4)))
    pairs = candidates(max(options.count, options.plain), options.seed)
    if options.count or options.groups or options.null:
        on_gpu(options, pairs, results)
    if options.plain:
        results.keep("plain_s", plain(pairs[: options.plain]))
    for cores in options.cores:
        results.keep("scaling", results.get("scaling", {}) | {cores: on_cores(cores, options.seed + 3 + cores)})


if __name__ == "__main__":
    main()
