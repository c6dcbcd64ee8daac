"""How `bench_loss.py` takes time: GPU spans, wall time and what a call costs the host."""

import statistics
import time
from collections.abc import Callable, Mapping

import torch

ROUNDS = 11


def once_ms(run: Callable[[], object], restore: Callable[[], object] | None = None) -> float:
    """Milliseconds on the GPU of `run`, after `restore` and with a flushed cache."""
    flush = torch.empty(2 << 30, dtype=torch.uint8, device="cuda")
    if restore:
        restore()
    # Several milliseconds, in which Python gets ahead of the GPU: the span holds GPU time alone.
    for _ in range(6):
        flush.zero_()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


Spans = dict[str, list[tuple[float, float]]]
"""When each was on the GPU, by `time.perf_counter`."""


def medians_ms(
    runs: Mapping[str, Callable[[], object]],
    restore: Callable[[], object] | None = None,
    rounds: int = ROUNDS,
    spans: Spans | None = None,
) -> dict[str, float]:
    """Median milliseconds of each, run in turn. What fails (by memory, mostly) is said and left out. Notes when it ran in
    `spans`, if given."""
    able = {}
    for name, run in runs.items():
        try:
            once_ms(run, restore)
            able[name] = run
        except RuntimeError as error:
            print(f"{name}: {str(error).splitlines()[0]}", flush=True)
            torch.cuda.empty_cache()
    times = {name: [] for name in able}
    for _ in range(rounds):
        for name, run in able.items():
            ms = once_ms(run, restore)
            times[name].append(ms)
            if spans is not None:
                now = time.perf_counter()
                spans.setdefault(name, []).append((now - ms / 1e3, now))
    return {name: statistics.median(of) for name, of in times.items()}


def host_and_wall_us(runs: Mapping[str, Callable[[], object]], rounds: int = 60) -> dict[str, tuple[float, float]]:
    """Median microseconds of each, run in turn on an idle GPU with a flushed cache: until the call returns, and until the GPU
    is done."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            flush.zero_()
            torch.cuda.synchronize()
            start = time.perf_counter()
            run()
            returned = time.perf_counter()
            torch.cuda.synchronize()
            times[name].append((returned - start, time.perf_counter() - start))
    return {name: tuple(1e6 * statistics.median(x) for x in zip(*of, strict=True)) for name, of in times.items()}  # pyright: ignore[reportReturnType]


def forward_backward(loss: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    loss(*(x.detach().requires_grad_() for x in inputs)).backward()


def peak_bytes(run: Callable[[], object]) -> int:
    """Most memory held during `run`, above what was held before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def copy_gb_per_s() -> float:
    source, target = torch.empty(2, 1 << 31, dtype=torch.uint8, device="cuda")
    return 2 * source.numel() / medians_ms({"copy": lambda: target.copy_(source)})["copy"] / 1e6
