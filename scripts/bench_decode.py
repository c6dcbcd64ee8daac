"""How long nano's decoding steps take: kernrl's captured step beside transformers' `generate`, on one GPU.

    python scripts/bench_decode.py --out docs/benchmarks/decode.json
    python scripts/bench_decode.py --out /tmp/decode.json --profile 256    # and where a step's time goes

Prompts of 560 to 640 random tokens, 4 samples each, 256 tokens a sample, in bf16 as training samples. A step's time is the
median over spans of 8 steps, its wait for the GPU included. The host's part of it is what it takes to start a replay, or, of
transformers' loop, the model's forward alone. What the first call takes longer than the second is capturing the step and
allocating its memory. The floor is reading the weights once and the columns that a step attends to, at the speed of a copy.
"""

import argparse
import functools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from loss_timing import copy_gb_per_s

from kernrl.policy.load import Policy, load_policy
from kernrl.rollouts.engines.decoding_batch import CHECK_EVERY
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine
from kernrl.runs.run_directory import environment

SAMPLES, NEW_TOKENS = 4, 256
COLUMNS = ("engine", "rows", "ms a step", "of the host", "tokens/s", "first call, ms more", "GiB at most", "floor, ms")


def prompts_for(rows: int, vocabulary: int) -> list[list[int]]:
    random = torch.Generator().manual_seed(rows)
    lengths = torch.randint(560, 641, (rows // SAMPLES,), generator=random).tolist()
    return [torch.randint(4, vocabulary, (length,), generator=random).tolist() for length in lengths]


def call(engine: GenerateEngine, prompts: list[list[int]], seed: int, tokens: int = NEW_TOKENS) -> tuple[float, list[float]]:
    """Seconds of a call, and when each span of its steps was over."""
    ends: list[float] = []
    engine.on_tokens = lambda _: ends.append(time.perf_counter())
    begun = time.perf_counter()
    count = sum(len(r.token_ids) for r in engine.generate(prompts, Sampling(SAMPLES, tokens, 0.8, seed=seed)))
    assert count == len(prompts) * SAMPLES * tokens
    return time.perf_counter() - begun, ends


@contextmanager
def timed(owner: type, name: str) -> Iterator[list[float]]:
    """Seconds of each call of a method, until it returns."""
    method, seconds = getattr(owner, name), []

    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        result = method(*args, **kwargs)
        seconds.append(time.perf_counter() - begun)
        return result

    setattr(owner, name, call)
    try:
        yield seconds
    finally:
        setattr(owner, name, method)


def measure(policy: Policy, rows: int, graphs: bool, gb_per_s: float) -> dict[str, Any]:
    config = policy.model.config
    prompts = prompts_for(rows, config.vocab_size)
    engine = GenerateEngine(policy, batch_size=rows, dtype=torch.bfloat16, graphs=graphs)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    first_s, _ = call(engine, prompts, 0)
    with timed(*((torch.cuda.CUDAGraph, "replay") if graphs else (type(policy.model), "forward"))) as starts_s:
        whole_s, ends = call(engine, prompts, 1)
    assert len(starts_s) == NEW_TOKENS - 1 or not graphs, "the step was not captured"
    peak = torch.cuda.max_memory_allocated()
    engine.close()
    columns = sum(map(len, prompts)) * SAMPLES + rows * NEW_TOKENS // 2
    heads = config.num_key_value_heads * config.hidden_size // config.num_attention_heads
    read = 2 * (sum(p.numel() for p in policy.model.parameters()) + columns * config.num_hidden_layers * 2 * heads)
    return {
        "engine": "captured step" if graphs else "transformers",
        "rows": rows,
        "ms_a_step": 1e3 * median(b - a for a, b in pairwise(ends)) / CHECK_EVERY,
        "host_ms_a_step": 1e3 * median(starts_s),
        "tokens_per_s": rows * NEW_TOKENS / whole_s,
        "first_call_ms_more": 1e3 * (first_s - whole_s),
        "peak_gib": peak / 2**30,
        "floor_ms": read / gb_per_s / 1e6,
    }


def profile(policy: Policy, rows: int) -> None:
    """Print the kernels of a call by their time, prompts included."""
    engine = GenerateEngine(policy, batch_size=rows, dtype=torch.bfloat16)
    prompts = prompts_for(rows, policy.model.config.vocab_size)
    call(engine, prompts, 0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        call(engine, prompts, 1)
    print(seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=25, max_name_column_width=60))


def table(results: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * (len(COLUMNS) - 1)]
    for r in results:
        cells = (
            r["engine"], f"{r['rows']:,}", f"{r['ms_a_step']:.3f}", f"{r['host_ms_a_step']:.3f}", f"{r['tokens_per_s']:,.0f}",
            f"{r['first_call_ms_more']:.0f}", f"{r['peak_gib']:.2f}", f"{r['floor_ms']:.3f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON record")
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--commit", help="of this code, where its folder is not a repository")
    parser.add_argument("--profile", type=int, metavar="ROWS", help="also print the kernels of a call with so many rows")
    options = parser.parse_args()
    policy = load_policy("nano")
    policy.model.to("cuda")  # pyright: ignore[reportArgumentType]
    for graphs in (True, False):  # what the first call of a process loads and compiles
        engine = GenerateEngine(policy, dtype=torch.bfloat16, graphs=graphs)
        call(engine, prompts_for(64, policy.model.config.vocab_size), 0, tokens=32)
        engine.close()
    about, gb_per_s = environment(), copy_gb_per_s()
    record = {
        **{key: about[key] for key in ("gpu", "versions")},
        "commit": options.commit or about["commit"],
        "date": time.strftime("%Y-%m-%d"),
        "copy_gb_per_s": gb_per_s,
        "results": [measure(policy, rows, graphs, gb_per_s) for rows in options.rows for graphs in (True, False)],
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{record['gpu']}, {record['versions']}\n\n{table(record['results'])}")
    if options.profile:
        profile(policy, options.profile)


if __name__ == "__main__":
    main()
