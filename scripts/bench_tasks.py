"""How many worked solutions are right at full size on a GPU, how fast they are, and how far styles of one task lie apart.

    python scripts/bench_tasks.py --pairs 2000 --out tasks.json

Worker processes compile solutions and check them against float64, at `ragged` in several input regimes and at `full`;
then one process times eager PyTorch, every right solution and, for a few tasks, `torch.compile`: CUDA graphs, cold L2,
median of `--repeats`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import subprocess
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from math import exp, log
from pathlib import Path

import torch
import triton

from kernrl.tasks.grammar.generate import MAX_BYTES, make_task
from kernrl.tasks.solutions.run_solutions import Bench, draw_like, load_module
from kernrl.tasks.task import Task

RAGGED_REGIMES = ("normal", "offset", "large", "sparse")
FLUSH_BYTES = 256 << 20


@dataclass
class Pair:
    """One (task, solution): whether it is right and how long it takes."""

    index: int
    family: str
    depth: int
    style: str
    name: str
    problem: str = ""
    """Why it is not right; empty when it is."""
    us: float = 0.0


@dataclass
class Row:
    """One task with its baselines."""

    index: int
    eager_us: float = 0.0
    compiled_us: float = 0.0
    pairs: list[Pair] = field(default_factory=list)


def configure() -> None:
    """float32 means float32: TF32 off in matrix products and convolutions, for reference and solution alike."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def check_task(task: Task, index: int, folder: Path, device: str) -> list[Pair]:
    """Check every solution of a task at `ragged` and `full`."""
    pairs = [Pair(index, task.family, len(task.composition), s.style, task.name) for s in task.solutions]
    modules = [load_module(s.triton_code, folder / f"s{index}_{i}.py") for i, s in enumerate(task.solutions)]
    for name, regimes in (("ragged", RAGGED_REGIMES), ("full", RAGGED_REGIMES[:1])):
        input_set = task.input_set(name)
        assert input_set is not None
        bench = Bench(task, input_set, device)
        models: dict[int, torch.nn.Module] = {}
        for regime in regimes:
            inputs = draw_like(bench.likes, regime, seed=index)
            truth = bench.truth(inputs)
            for number, (pair, module) in enumerate(zip(pairs, modules, strict=True)):
                if pair.problem:
                    continue
                try:
                    model = models.setdefault(number, bench.answer(module))
                    agreement = bench.compare(model, inputs, truth)
                    if not agreement.ok:
                        pair.problem = f"{name}/{regime}: {agreement}"
                except Exception as error:
                    pair.problem = f"{name}/{regime}: {type(error).__name__}: {str(error)[-300:]}"
    return pairs


def check_worker(questions, answers, seed: int, folder: str, device: str, deadline: float) -> None:
    """Check task indices from the queue until it is empty or the time is up."""
    torch.set_num_threads(1)
    configure()
    while (index := questions.get()) is not None and time.time() < deadline:
        try:
            answers.put((index, check_task(make_task(2, seed, index), index, Path(folder), device)))
        except Exception:
            answers.put((index, traceback.format_exc()[-500:]))
        torch.cuda.empty_cache()
    answers.put((None, None))


def check_all(indices: Iterable[int], seed: int, folder: Path, workers: int, seconds: float) -> tuple[list[Row], list[str]]:
    """Check tasks in parallel processes. Returns rows in index order and what went wrong with whole tasks."""
    context = multiprocessing.get_context("spawn")
    questions, answers = context.Queue(), context.Queue()
    for item in [*indices, *[None] * workers]:
        questions.put(item)
    arguments = (questions, answers, seed, str(folder), "cuda", time.time() + seconds)
    processes = [context.Process(target=check_worker, args=arguments, daemon=True) for _ in range(workers)]
    for process in processes:
        process.start()
    rows, failures, running = [], [], workers
    while running:
        index, made = answers.get()
        if index is None:
            running -= 1
        elif isinstance(made, str):
            failures.append(f"task {index}: {made}")
        else:
            rows.append(Row(index, pairs=made))
    return sorted(rows, key=lambda row: row.index), failures


def graph_us(run: Callable[[], object], flush: torch.Tensor, repeats: int) -> float:
    """Median device time of one call, replayed as a CUDA graph with a cold L2, in microseconds."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in events:
        flush.zero_()
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    return 1e3 * statistics.median(start.elapsed_time(end) for start, end in events)


@torch.no_grad()
def time_row(row: Row, seed: int, folder: Path, flush: torch.Tensor, repeats: int) -> None:
    """Time a task's baselines and right solutions at full size."""
    task = make_task(2, seed, row.index)
    bench = Bench(task, task.input_sets[0], "cuda")
    inputs = draw_like(bench.likes, "normal", seed=row.index)
    row.eager_us = graph_us(lambda: bench.model(*inputs), flush, repeats)
    for number, (pair, solution) in enumerate(zip(row.pairs, task.solutions, strict=True)):
        if not pair.problem:
            model = bench.answer(load_module(solution.triton_code, folder / f"s{row.index}_{number}.py"))
            pair.us = graph_us(lambda model=model: model(*inputs), flush, repeats)


@torch.no_grad()
def time_compiled(row: Row, seed: int, flush: torch.Tensor, repeats: int) -> None:
    """Time `torch.compile` (default mode) on a task at full size."""
    torch._dynamo.reset()
    task = make_task(2, seed, row.index)
    bench = Bench(task, task.input_sets[0], "cuda")
    inputs = draw_like(bench.likes, "normal", seed=row.index)
    module = torch.compile(bench.model)
    row.compiled_us = graph_us(lambda: module(*inputs), flush, repeats)


def geomean(values: Iterable[float]) -> float:
    """The geometric mean; nan of nothing."""
    logs = [log(value) for value in values]
    return exp(sum(logs) / len(logs)) if logs else float("nan")


def table(rows: list[Row], keys: Callable[[Pair], Iterable[object]]) -> list[str]:
    """Lines of right / checked and speedups over eager, by the groups that a pair is in."""
    groups: dict[object, list[tuple[Row, Pair]]] = defaultdict(list)
    for row in rows:
        for pair in row.pairs:
            for key in keys(pair):
                groups[key].append((row, pair))
    lines = [f"{'':34}{'checked':>8}{'right':>8}{'timed':>7}{'geomean':>9}{'>1x':>6}"]
    for name, members in sorted(groups.items(), key=lambda item: str(item[0])):
        right = sum(not pair.problem for _, pair in members)
        speedups = [row.eager_us / pair.us for row, pair in members if pair.us]
        faster = sum(x > 1 for x in speedups) / max(len(speedups), 1)
        lines.append(
            f"{name!s:34}{len(members):8}{right / len(members):8.1%}{len(speedups):7}{geomean(speedups):9.2f}{faster:6.0%}"
        )
    return lines


def summary(rows: list[Row]) -> dict[str, float]:
    """The figures of the last lines."""
    pairs = [pair for row in rows for pair in row.pairs]
    timed = [row for row in rows if sum(pair.us > 0 for pair in row.pairs) > 1]
    times = [[pair.us for pair in row.pairs if pair.us] for row in timed]
    compiled = [row for row in rows if row.compiled_us and any(pair.us for pair in row.pairs)]
    best = [(row.eager_us, min(pair.us for pair in row.pairs if pair.us), row.compiled_us) for row in compiled]
    return {
        "pairs": len(pairs),
        "right": sum(not pair.problem for pair in pairs),
        "tasks_timed": len(timed),
        "eager_us_median": statistics.median([row.eager_us for row in timed] or [0.0]),
        "best_style_x": geomean(row.eager_us / min(t) for row, t in zip(timed, times, strict=True)),
        "worst_style_x": geomean(row.eager_us / max(t) for row, t in zip(timed, times, strict=True)),
        "slowest_over_fastest_style_x": geomean(max(t) / min(t) for t in times),
        "tasks_compiled": len(compiled),
        "compile_x": geomean(eager / compiled_us for eager, _, compiled_us in best),
        "best_style_over_compile_x": geomean(compiled_us / mine for _, mine, compiled_us in best),
    }


def main() -> None:
    """Check, time, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=2000, help="about how many (task, solution) pairs to check")
    parser.add_argument("--seed", type=int, default=0, help="seed of the generator")
    parser.add_argument("--workers", type=int, default=12, help="processes that compile and check")
    parser.add_argument("--check-seconds", type=float, default=240, help="stop checking after this long")
    parser.add_argument("--time-seconds", type=float, default=60, help="stop timing after this long")
    parser.add_argument("--compiled", type=int, default=0, help="tasks on which to time torch.compile too")
    parser.add_argument("--repeats", type=int, default=11, help="timed calls a program")
    parser.add_argument("--out", type=Path, help="JSON file of all figures")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("a CUDA GPU is needed")
    configure()
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        indices, expected = [], 0
        while expected < options.pairs:
            indices.append(len(indices))
            expected += len(make_task(2, options.seed, indices[-1]).solutions)
        rows, failures = check_all(indices, options.seed, Path(folder), options.workers, options.check_seconds)
        checked_s = time.time() - start
        torch.backends.cudnn.benchmark = True
        flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        timing = time.time()
        for number, row in enumerate(rows):
            if time.time() - timing > options.time_seconds:
                break
            time_row(row, options.seed, Path(folder), flush, options.repeats)
            if number % 20 == 0:
                torch.cuda.empty_cache()
        for row in rows[: options.compiled]:
            time_compiled(row, options.seed, flush, options.repeats)
    figures = summary(rows) | {"check_s": checked_s, "total_s": time.time() - start}
    for title, keys in (
        ("family", lambda pair: [pair.family]),
        ("depth", lambda pair: [pair.depth]),
        ("trait of the style", lambda pair: pair.style.split("-")),
    ):
        print(f"\nby {title}", *table(rows, keys), sep="\n")
    print(
        "\nnot right", *(f"{p.index} {p.style} {p.name}: {p.problem}" for row in rows for p in row.pairs if p.problem), sep="\n"
    )
    print("\nfailed tasks", *failures, sep="\n")
    print("\n" + "\n".join(f"{name:32} {value:.4g}" for name, value in figures.items()))
    if options.out:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
        versions = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}
        versions |= {"python": platform.python_version(), "commit": commit}
        arguments = {name: value for name, value in vars(options).items() if name != "out"} | {"max_bytes": MAX_BYTES}
        record = {"versions": versions, "arguments": arguments, "figures": figures, "failures": failures}
        options.out.write_text(json.dumps(record | {"tasks": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
