"""What an SFT step costs on a GPU, and what more pairs are worth.

    python scripts/bench_sft.py --out sft.json
    for n in 240 2400 24600; do kernrl sft --count $n --steps 1000 --heldout-samples 4 --output runs/$n; done
    python scripts/bench_sft.py --runs runs/240 runs/2400 runs/24600 --out sft.json

Speeds: nano, and the architecture of Qwen2.5-Coder-1.5B with random weights (full and LoRA), on packed rows of random tokens
whose lengths are those of generated pairs. A step is timed to its last kernel; the first ones, which compile, are left out.
Results are added to what `--out` holds already; the table beside it (.md) is written anew.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from paragraphs import wrapped
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from kernrl.policy.attention import VARLEN
from kernrl.policy.examples import Example
from kernrl.policy.finetune import Finetuner, FinetuneSettings
from kernrl.policy.load import Policy, add_lora
from kernrl.policy.memory_plan import GIB, count_parameters, estimate_training
from kernrl.policy.nano import create_nano, train_tokenizer
from kernrl.policy.packing import PackedDataset
from kernrl.policy.ranks import Ranks
from kernrl.runs.run_directory import environment, read_lines
from kernrl.verifier.base.devices import device_for

LORA_RANK = 16

QWEN_1_5B = Qwen2Config(
    vocab_size=151_936,
    hidden_size=1536,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    intermediate_size=8960,
    max_position_embeddings=32_768,
    rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    tie_word_embeddings=True,
    eos_token_id=151_645,
)
"""The published configuration of Qwen2.5-Coder-1.5B."""


@dataclass(frozen=True)
class Case:
    """One way to train one model."""

    name: str
    make: Callable[[], Policy]
    row_tokens: int
    compile_model: bool = True
    lora: bool = False
    length: tuple[int, int] = (60, 210)
    """Shortest and longest pair, in tokens."""


def nano() -> Policy:
    tokenizer = train_tokenizer(["def f(x): return x + 1"])
    config = create_nano(tokenizer, seed=0).config
    config.vocab_size = 4096  # what the tokenizer of the generated pairs has
    with torch.device("cuda"):
        return Policy(Qwen2ForCausalLM(config), tokenizer)


def qwen(*, lora: bool) -> Policy:
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(QWEN_1_5B)
    if lora:
        model = model.to(torch.bfloat16)  # pyright: ignore[reportArgumentType]
        return Policy(add_lora(model, rank=LORA_RANK, alpha=2 * LORA_RANK), Qwen2Tokenizer())
    return Policy(model, Qwen2Tokenizer())


CASES = (
    Case("nano, compiled", nano, 65_536),
    Case("nano, eager", nano, 65_536, compile_model=False),
    Case("Qwen2.5-Coder-1.5B, full, eager", lambda: qwen(lora=False), 16_384, False, length=(600, 1600)),
    Case("Qwen2.5-Coder-1.5B, LoRA, eager", lambda: qwen(lora=True), 16_384, False, lora=True, length=(600, 1600)),
)


def rows_of_lengths(case: Case, vocabulary: int) -> PackedDataset:
    """Random tokens: what a step costs depends on lengths alone."""
    random = np.random.default_rng(0)
    low, high = case.length

    def example() -> Example:
        ids = random.integers(4, vocabulary, int(random.integers(low, high))).tolist()
        third = len(ids) // 3
        return Example(ids[:third], ids[third:])

    count = 24 * case.row_tokens // ((low + high) // 2)
    return PackedDataset([example() for _ in range(count)], case.row_tokens, 0, seed=0)


def measure(case: Case, steps: int) -> dict[str, Any]:
    """Medians over `steps` steps, after 4 that compile and warm up."""
    torch.cuda.reset_peak_memory_stats()
    policy = case.make()
    policy.model.set_attn_implementation(VARLEN)
    config = policy.model.config
    data = rows_of_lengths(case, config.vocab_size)
    settings = FinetuneSettings(steps=4 + steps, rows_per_step=1, learning_rate=1e-5)
    ranks = Ranks(Accelerator(mixed_precision="bf16"))
    finetuner = Finetuner(ranks, policy, data, settings, compile_model=case.compile_model)
    lines: list[dict[str, Any]] = []
    started = time.perf_counter()
    finetuner.run(lines.append)
    lines = lines[4:]
    peak = device_for(torch.cuda.get_device_name())
    estimate = estimate_training(
        config,
        parameters=count_parameters(config),
        row_tokens=case.row_tokens,
        weight_bytes=2 if case.lora else 4,
        lora_rank=LORA_RANK if case.lora else 0,
        compiled=case.compile_model,
    )
    tflops = median(line["tflops"] for line in lines)
    return {
        "name": case.name,
        "parameters": policy.model.num_parameters(),
        "row_tokens": case.row_tokens,
        "step_ms": 1e3 * median(line["seconds"] for line in lines),
        "tokens_per_s": median(line["tokens_per_s"] for line in lines),
        "tflops": tflops,
        "mfu": tflops / peak.half_tflops if peak else None,
        "data_wait_ms": 1e3 * median(line["data_wait_s"] for line in lines),
        "peak_gib": torch.cuda.max_memory_allocated() / GIB,
        "foretold_gib": estimate.total_bytes / GIB,
        "first_loss": lines[0]["loss"],
        "last_loss": lines[-1]["loss"],
        "total_s": time.perf_counter() - started,
    }


def point(run: Path) -> dict[str, Any]:
    """One point of the learning curve: a run of `kernrl sft` with its held-out figures, and where it fails."""
    results = json.loads((run / "results.json").read_text())
    kept = ("pairs", "steps", "tokens", "train_s", "loss", "validation_loss")
    found = results["heldout"]
    heldout = {key: found[key] for key in found if key == "compiled" or key.startswith("pass@")}
    parts = {by: {key: part["correct"] for key, part in found[by].items()} for by in ("by_family", "by_depth")}
    history = [line for line in read_lines(run / "metrics.jsonl") if "validation_loss" in line]
    curve = {"validation_losses": {line["step"]: line["validation_loss"] for line in history}}
    counts = {key: found[key] for key in ("tasks", "samples", "statuses")}
    return {key: results[key] for key in kept} | curve | counts | {"heldout": heldout} | parts


def markdown(record: dict[str, Any]) -> str:
    """The tables of the record."""
    lines = ["# Supervised fine-tuning: speed, and what more pairs are worth", ""]
    if speeds := record.get("speeds"):
        made = record["speeds_made"]
        versions = ", ".join(f"{n} {v}" for n, v in made["versions"].items())
        lines += [wrapped(f"Steps on one {made['gpu']}, {versions}."), ""]
        lines += table(
            ("model", "tokens a row", "step, ms", "tokens/s", "MFU", "peak GiB", "foretold GiB"), map(speed_row, speeds)
        )
        lines += [
            "",
            "Padding is left out of tokens/s. MFU: as `kernrl/policy/flops.py` counts, over the data sheet's peak.",
            "",
        ]
    if curve := record.get("curve"):
        names = list(curve[0]["heldout"])
        under = ", ".join(record.get("precisions", ["fp32"]))
        said = f"On one {record['curve_made']['gpu']}, held-out compositions, judged under {under}."
        lines += ["## nano by the number of pairs", "", said, ""]
        lines += table(("pairs", "steps", "tokens", "loss", "validation loss", *names), map(curve_row, curve))
    return "\n".join(lines).rstrip() + "\n"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles), *rows)]


def speed_row(s: dict[str, Any]) -> list[str]:
    sizes = [s["name"], f"{s['row_tokens']:,}", f"{s['step_ms']:.1f}", f"{s['tokens_per_s']:,.0f}", f"{s['mfu']:.1%}"]
    return [*sizes, f"{s['peak_gib']:.1f}", f"{s['foretold_gib']:.1f}"]


def curve_row(p: dict[str, Any]) -> list[str]:
    trained = [f"{p['pairs']:,}", f"{p['steps']:,}", f"{p['tokens'] / 1e6:.1f} M"]
    return [*trained, f"{p['loss']:.4f}", f"{p['validation_loss']:.4f}", *(f"{e['value']:.3f}" for e in p["heldout"].values())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the JSON record; the table goes beside it")
    parser.add_argument("--runs", type=Path, nargs="+", help="runs of `kernrl sft`, for the learning curve; nothing is timed")
    parser.add_argument("--steps", type=int, default=20, help="steps that are timed")
    options = parser.parse_args()
    record = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.runs:
        record["curve"] = [point(run) for run in options.runs]
        record["curve_made"] = {k: json.loads((options.runs[0] / "config.json").read_text())[k] for k in ("gpu", "versions")}
    else:
        record["speeds"], record["speeds_made"] = [], environment()
    for case in CASES if not options.runs else ():
        record["speeds"].append(measure(case, options.steps))
        torch.cuda.empty_cache()
        print(json.dumps(record["speeds"][-1]), flush=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(markdown(record))


if __name__ == "__main__":
    main()
