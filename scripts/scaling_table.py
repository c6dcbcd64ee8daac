"""The tables of docs/notes/2026-11-21-two-gpus.md, from what scripts/bench_scaling.py wrote.

    python scripts/scaling_table.py one.json ddp.json lora.json fsdp2.json --out docs/benchmarks/scaling.json
    python scripts/scaling_table.py docs/benchmarks/scaling.json

`--out` puts the records together in one file. `one` is the record that the losses of the others are compared with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MODELS = {"sft": "nano", "lora": "7B, LoRA", "full": "7B, all weights"}
PHASES = ("generate", "verify", "update", "step")
KERNELS = ("products", "attention", "elementwise", "optimizer", "communication alone")


def merged(files: Iterable[Path]) -> dict[str, Any]:
    """Records by the name of their file, from files of one record or of several put together."""
    records: dict[str, Any] = {}
    for file in files:
        found = json.loads(file.read_text())
        records |= {file.stem: found} if "processes" in found else found
    return records


def table(records: dict[str, Any]) -> str:
    """Markdown: a line for each model trained, its kernels, each step of `reinforce`, and each round of verdicts."""
    tuned, kernels, learnt, judged = [], [], [], []
    for name, part, record, found in parts(records):
        gpus = record["gpus"]
        if part in MODELS:
            what = f"{MODELS[part]}{spread(record, found)}"
            rows = f"{found['rows_per_step']} × {found['row_tokens']:,}"
            speed = [f"{found['step_s']:.3f}", f"{found['tokens_per_s']:,.0f}", f"{found['tflops_per_gpu']:.0f}"]
            compared = part == "sft" and name != "one"
            apart = f"{furthest(found['losses'], records['one']['sft']['losses']):.1e}" if compared else ""
            tuned.append([what, gpus, rows, *speed, f"{found['peak_gib']:.1f}", apart])
            kernels.append([what, gpus, *(f"{found['profile_ms'][kind]:.0f}" for kind in KERNELS)])
        elif part == "rl":
            for number, step in enumerate(found["steps"], 1):
                seconds = [f"{step['seconds'][phase]:.2f}" for phase in PHASES]
                loss = f"{step['loss']:.8f}" if "loss" in step else ""  # a step whose groups were all alike teaches nothing
                learnt.append([gpus, number, loss, f"{step['reward']:.4f}", *seconds, f"{step['attempts_per_s']:.1f}"])
        else:
            cost = [f"{found['verdicts_per_s']:.1f}", f"{found['core_s_per_verdict']:.2f}"]
            judged.append([gpus, record["cores"], found["verdicts"], *cost])
    tables = (
        (["training", "GPUs", "rows a step", "step, s", "tokens/s", "TFLOP/s a GPU", "peak, GiB", "losses apart"], tuned),
        (["a step's kernels, ms", "GPUs", *KERNELS], kernels),
        (["GPUs", "step of `reinforce`", "loss", "reward", *(f"{p}, s" for p in PHASES), "attempts/s"], learnt),
        (["GPUs", "cores", "verdicts", "verdicts/s", "core-seconds a verdict"], judged),
    )
    return "\n".join(markdown(head, lines) for head, lines in tables if lines)


def parts(records: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any], dict[str, Any]]]:
    """(name of the record, part, record, what the part found), part after part."""
    for part in (*MODELS, "rl", "verdicts"):
        for name, record in records.items():
            if part in record:
                yield name, part, record, record[part]


def spread(record: dict[str, Any], found: dict[str, Any]) -> str:
    """How the processes share the weights."""
    return "" if record["processes"] == 1 else ", FSDP2" if found["sharded"] else ", DDP"


def furthest(losses: list[float], others: list[float]) -> float:
    """Largest relative difference between two runs' losses at a step."""
    return max(abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True))


def markdown(head: list[str], lines: list[list[Any]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def main() -> None:
    """Print the tables, and put the records together where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, help="file to put the records in")
    options = parser.parse_args()
    records = merged(options.files)
    if options.out:
        options.out.write_text(json.dumps(records, indent=1) + "\n")
    print(table(records), end="")


if __name__ == "__main__":
    main()
