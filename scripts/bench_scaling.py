"""Training on one GPU and on several: the same losses, how much faster, and what a 7B model takes.

    python scripts/bench_scaling.py sft verdicts rl --out one.json
    accelerate launch --config_file kernrl/runs/accelerate/ddp.yaml scripts/bench_scaling.py sft verdicts rl --out ddp.json
    python scripts/bench_scaling.py lora --out lora.json
    accelerate launch --config_file kernrl/runs/accelerate/fsdp2.yaml scripts/bench_scaling.py full sft --out fsdp2.json
    python scripts/scaling_table.py one.json ddp.json lora.json fsdp2.json --out docs/benchmarks/scaling.json

`--small` takes sizes that a CPU bears, to try the script. `--out` is written anew after every part, so that a part that does
not end costs nothing of what came before; `rl` ends the processes' group, so it comes last.

Parts: `sft` steps of nano on random tokens; `rl` steps of `kernrl reinforce` with the verifier, whose clock is left out of
the reward so that the same rollouts earn the same on any day; `lora` and `full` steps of the architecture of
Qwen2.5-Coder-7B with random weights; `verdicts` of the verifier alone, which the first process asks, on every GPU it sees.
Every process gets the same seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from bench_verifier import candidates, throughput
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer, set_seed

from kernrl.config import ReinforceConfig, VerifierConfig
from kernrl.files import replace_file
from kernrl.policy.attention import VARLEN
from kernrl.policy.examples import Example
from kernrl.policy.finetune import Finetuner, FinetuneSettings
from kernrl.policy.load import Policy, add_lora, recompute_activations
from kernrl.policy.memory_plan import GIB
from kernrl.policy.nano import create_nano, train_tokenizer
from kernrl.policy.packing import PackedDataset
from kernrl.policy.ranks import Ranks
from kernrl.runs.run_directory import environment, read_lines
from kernrl.runs.tracking import open_accelerator
from kernrl.stages import reinforce
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Verdict
from kernrl.verifier.verifier import HardenedVerifier

WARM = 4
"""Steps that compile and warm up, and are not timed."""

KINDS = {
    "communication": ("nccl",),
    "attention": ("flash", "fmha"),
    "products": ("gemm", "nvjet", "cutlass", "xmma", "cublas"),
    "optimizer": ("adam", "multi_tensor"),
}
"""What a kernel's name says it does; the rest is elementwise."""


def seven_billion(*, small: bool) -> Qwen2Config:
    """The published configuration of Qwen2.5-Coder-7B, or the same with less of everything but the heads."""
    return Qwen2Config(
        vocab_size=512 if small else 152_064,
        hidden_size=112 if small else 3584,
        num_hidden_layers=2 if small else 28,
        num_attention_heads=28,
        num_key_value_heads=4,
        intermediate_size=256 if small else 18_944,
        max_position_embeddings=32_768,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=False,
        eos_token_id=151_645,
    )


def nano(device: torch.device) -> Policy:
    tokenizer = train_tokenizer(["def f(x): return x + 1"])
    policy = Policy(create_nano(tokenizer, seed=0), tokenizer)
    return Policy(policy.model.to(device), tokenizer)  # pyright: ignore[reportArgumentType]


def seven(device: torch.device, *, lora: bool, small: bool) -> Policy:
    """Random weights, made on the GPU: on a CPU they would take minutes."""
    set_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(seven_billion(small=small)).to(torch.bfloat16 if lora else torch.float32)  # pyright: ignore
    if lora:
        model = add_lora(model, rank=16, alpha=32)
    recompute_activations(model)
    return Policy(model, Qwen2Tokenizer())


def random_rows(vocabulary: int, row_tokens: int, lengths: tuple[int, int], rows: int) -> PackedDataset:
    """Pairs of random tokens: what a step costs depends on their lengths alone."""
    random = np.random.default_rng(0)

    def example() -> Example:
        ids = random.integers(4, vocabulary, int(random.integers(*lengths))).tolist()
        return Example(ids[: len(ids) // 3], ids[len(ids) // 3 :])

    count = rows * row_tokens // (sum(lengths) // 2)
    return PackedDataset([example() for _ in range(count)], row_tokens, 0, seed=0)


def tune(
    ranks: Ranks, policy: Policy, data: PackedDataset, *, rows_per_step: int, steps: int, compile_model: bool
) -> dict[str, Any]:
    """Losses of all steps, medians of those that are timed, and where the last one's time went."""
    policy.model.set_attn_implementation(VARLEN)
    on_gpu = ranks.accelerator.device.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    settings = FinetuneSettings(steps=WARM + steps, rows_per_step=rows_per_step, learning_rate=1e-4)
    finetuner = Finetuner(ranks, policy, data, settings, compile_model=compile_model)
    lines: list[dict[str, Any]] = []

    def on_step(metrics: dict[str, Any]) -> None:
        lines.append(metrics)
        if ranks.leads:  # what is known if time runs out
            print(f"step {metrics['step']}: loss {metrics['loss']:.6f}, {metrics['seconds']:.3f} s", flush=True)

    finetuner.run(on_step)
    finetuner.settings = replace(settings, steps=WARM + steps + 1)
    with profile(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]) as profiler:
        finetuner.run(lambda metrics: None)
    timed = lines[WARM:]
    return {
        "sharded": ranks.sharded,
        "parameters": policy.model.num_parameters(),
        "rows_per_step": rows_per_step,
        "row_tokens": data.row_tokens,
        "losses": [line["loss"] for line in lines],
        "grad_norms": [line["grad_norm"] for line in lines],
        "step_s": median(line["seconds"] for line in timed),
        "tokens_per_s": median(line["tokens_per_s"] for line in timed),
        "tflops_per_gpu": median(line["tflops"] for line in timed),
        "peak_gib": torch.cuda.max_memory_allocated() / GIB if on_gpu else None,
        "profile_ms": spent(profiler),
    }


def spent(profiler: Any) -> dict[str, float]:
    """Milliseconds of a step's kernels by kind, and how long nothing but communication ran."""
    events = [e for e in profiler.events() if e.device_type == DeviceType.CUDA]
    found = dict.fromkeys([*KINDS, "elementwise"], 0.0)
    talk, work = [], []
    for event in events:
        name = event.name.lower()
        kind = next((k for k, words in KINDS.items() if any(w in name for w in words)), "elementwise")
        span = (event.time_range.start, event.time_range.end)
        found[kind] += (span[1] - span[0]) / 1e3
        (talk if kind == "communication" else work).append(span)
    found["communication alone"] = (covered(talk + work) - covered(work)) / 1e3
    found["busy"] = covered(talk + work) / 1e3
    return found


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


class WithoutClock:
    """The verifier, with the times left out of its verdicts."""

    def __init__(self, verifier: HardenedVerifier):
        self._verifier = verifier

    def gpu(self) -> str:
        return self._verifier.gpu()

    def unfit(self, task: Task) -> str:
        return self._verifier.unfit(task)

    def doing(self) -> str:
        return self._verifier.doing()

    def untimed(self, gpu: int | None = None) -> AbstractContextManager[None]:
        return self._verifier.untimed(gpu)

    def verify_many(self, pairs: Iterable[tuple[Task, str]]) -> Iterator[tuple[int, Verdict]]:
        for position, verdict in self._verifier.verify_many(pairs):
            yield position, replace(verdict, timing=None)


@contextmanager
def fresh_verifier(noise: Path | None, device: Literal["auto", "cpu"] = "auto") -> Iterator[HardenedVerifier]:
    """A verifier that knows no verdict and no machine code yet. A GPU's noise is taken from the folder `noise`, and kept there
    where it had to be measured."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        for file in noise.glob("noise-*.json") if noise else ():
            shutil.copy(file, cache)
        with HardenedVerifier(VerifierConfig(cache_dir=cache, device=device)) as verifier:
            yield verifier
        if noise:
            noise.mkdir(parents=True, exist_ok=True)
            for file in cache.glob("noise-*.json"):
                shutil.copy(file, noise)


def rl(verifier: HardenedVerifier, model: str, steps: int, attempts: int, max_tokens: int) -> dict[str, Any]:
    """Metrics of `kernrl reinforce` on generated tasks."""
    with tempfile.TemporaryDirectory() as folder:
        config = ReinforceConfig(
            model=model,
            output=Path(folder) / "run",
            limit=64,
            steps=steps,
            tasks_per_step=attempts // 8,
            samples=8,
            max_tokens=max_tokens,
            sampling_batch=attempts // 2,
            learning_rate=1e-5,
            save_every=steps,
        )
        reinforce.run(config, WithoutClock(verifier))
        lines = read_lines(config.output / "metrics.jsonl")
    kept = ("loss", "grad_norm", "reward", "correct", "learnt_tokens", "attempts_per_s", "seconds")
    return {"attempts": attempts, "steps": [{name: line[name] for name in kept if name in line} for line in lines]}


def verdicts(verifier: HardenedVerifier, count: int) -> dict[str, Any]:
    """Verdicts a second on distinct candidates, none from a cache."""
    begun = time.perf_counter()
    verifier.evaluator.start()
    start_s = time.perf_counter() - begun
    throughput(verifier, candidates(32, seed=1))
    found = throughput(verifier, candidates(count, seed=0))
    kept = ("verdicts", "wall_s", "verdicts_per_s", "core_s_per_verdict", "statuses", "mean_seconds")
    return {"start_s": start_s, **{name: found[name] for name in kept}}


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", help="sft, lora, full, verdicts, rl")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("--model", default="nano", help="of `rl`")
    parser.add_argument("--steps", type=int, default=10, help="that are timed")
    parser.add_argument("--attempts", type=int, default=128, help="a step of `rl`")
    parser.add_argument("--count", type=int, default=300, help="of `verdicts`")
    parser.add_argument("--noise", type=Path, help="folder that keeps the noise of GPUs, which takes 20 s each to measure")
    parser.add_argument("--small", action="store_true", help="sizes that a CPU bears")
    options = parser.parse_args()
    accelerator = open_accelerator("none", Path())
    ranks = Ranks(accelerator)
    device, small = accelerator.device, options.small

    def large(*, lora: bool) -> dict[str, Any]:
        rows = random_rows(512 if small else 152_064, 512 if small else 16_384, (60, 160) if small else (600, 1600), 16)
        policy = seven(device, lora=lora, small=small)
        return tune(ranks, policy, rows, rows_per_step=ranks.size, steps=4, compile_model=False)

    machine = {"gpus": torch.cuda.device_count(), "cores": len(os.sched_getaffinity(0))}
    record: dict[str, Any] = {**machine, "processes": ranks.size, "made": environment()}
    with fresh_verifier(options.noise) as verifier:
        runs: dict[str, Callable[[], dict[str, Any]]] = {
            "lora": lambda: large(lora=True),
            "full": lambda: large(lora=False),
            "sft": lambda: tune(
                ranks, nano(device), random_rows(256, 512 if small else 65_536, (60, 210), 64), rows_per_step=4,
                steps=options.steps, compile_model=device.type == "cuda" and not ranks.sharded,
            ),
            "verdicts": lambda: verdicts(verifier, options.count) if ranks.leads else {},
            "rl": lambda: rl(verifier, options.model, 3, options.attempts, 64 if small else 512),
        }  # fmt: skip
        for part in sorted(options.parts, key=list(runs).index):
            started = time.perf_counter()
            record[part] = runs[part]()
            record[part]["total_s"] = time.perf_counter() - started
            torch.cuda.empty_cache()
            if ranks.leads:
                replace_file(options.out, json.dumps(record, indent=1) + "\n")
                print(f"{part}: {record[part]['total_s']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
