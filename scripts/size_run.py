"""What a step of `kernrl reinforce` would take on so many GPUs, phase by phase: a calculation, with every input open.

    python scripts/size_run.py                                      # 7B, 32B on 64 and 1,000 GPUs: docs/explanation/scaling.md
    python scripts/size_run.py --gpus 16 --tasks 64 --set train_tflops=410 --set gpu_s_per_verdict=0.006

A GPU samples (a server), trains (FSDP2) or verifies (Ray); the division that makes the step shortest is searched for. As in
the loop, verification runs beside sampling and nothing beside an update. `Rates` says of each input whether it was measured
on this project's code or is assumed: put in your own with `--set`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from math import ceil
from typing import Any

HOST_GPUS = 8
SIZES = ([64, 1000, 1000], [128, 128, 2048])
"""GPUs, and tasks a step, of the table in docs/explanation/scaling.md."""
GIB = 2**30


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder, as published."""

    name: str
    parameters: float
    layers: int
    hidden: int
    kv_width: int
    """Key and value heads times their width."""


MODELS = (Model("7B", 7.62e9, 28, 3584, 512), Model("32B", 32.76e9, 64, 5120, 1024))
"""Qwen2.5-Coder-7B and -32B."""


@dataclass(frozen=True)
class Load:
    """What a step is asked for."""

    tasks: int = 128
    samples: int = 16
    prompt_tokens: int = 1500
    reply_tokens: int = 1500
    """On average."""
    longest_tokens: int = 4096
    """The longest reply, which others wait for."""
    row_tokens: int = 16_384
    save_every: int = 1

    @property
    def rollouts(self) -> int:
        return self.tasks * self.samples

    @property
    def tokens(self) -> int:
        """Prompts count once a rollout: each is packed with its own."""
        return self.rollouts * (self.prompt_tokens + self.reply_tokens)


def measured(value: float, where: str) -> Any:
    return field(default=value, metadata={"source": f"measured: {where}"})


def assumed(value: float, why: str) -> Any:
    return field(default=value, metadata={"source": f"assumed: {why}"})


@dataclass(frozen=True)
class Rates:
    """How fast things are. A GPU is an H200, a host has eight."""

    gpu_s_per_verdict: float = measured(0.00998, "one H200, candidates of nano's kind (scaling.json, gpu_busy)")
    core_s_per_verdict: float = measured(0.413, "16 cores (the same record)")
    asker_s_per_verdict: float = measured(0.0143, "at most: parse, screen and plan in the asking process (the same record)")
    last_verdict_s: float = measured(0.83, "trace, compile and correctness of one candidate (the same record)")
    rank_s_per_token: float = measured(0.35e-6, "reading and packing a step's rollouts, one CPU core")
    bytes_per_token: float = measured(8.6, "a step's rollouts as they are broadcast")
    train_tflops: float = measured(396.0, "6 FLOP a weight and token, 7B on two H200s, FSDP2, checkpointing (scaling.json)")
    hbm_gb_s: float = assumed(4800.0, "data sheet")
    hbm_share: float = assumed(0.5, "of that bandwidth, reached by a server's decoding")
    decode_batch: float = assumed(256, "rollouts that a server decodes at once on a GPU")
    nvlink_gb_s: float = assumed(300.0, "a GPU's share within a host, one direction")
    network_gb_s: float = assumed(40.0, "a GPU's share between hosts, one direction: 400 Gb/s, four fifths used")
    disk_gb_s: float = assumed(2.0, "a host's share of the file system")
    host_cores: float = assumed(96, "of a host, for tracing and compiling")
    gpu_gib: float = assumed(120.0, "of 141 GB, for weights, gradients, moments and activations")


@dataclass(frozen=True)
class Division:
    """GPUs by what they do."""

    train: int
    sample: int
    verify: int


def phases(model: Model, load: Load, rates: Rates, gpus: Division) -> dict[str, float]:
    """Seconds of a step by phase. `step` adds up what runs one after the other."""
    verify = {
        "verify on GPUs": load.rollouts * rates.gpu_s_per_verdict / gpus.verify,
        # the cores of every host trace and compile, whatever its GPUs do
        "verify on cores": load.rollouts * rates.core_s_per_verdict / (rates.host_cores * hosts(sum(asdict(gpus).values()))),
        "verify in the asking process": load.rollouts * rates.asker_s_per_verdict,
    }
    beside = {"generate": generate_s(model, load, rates, gpus.sample), **verify}
    after = {
        "last verdict": rates.last_verdict_s,
        "hand out rollouts": load.tokens * (rates.rank_s_per_token + rates.bytes_per_token / (rates.network_gb_s * 1e9)),
        "update": update_s(model, load, rates, gpus.train),
        "sync": 2 * model.parameters / (rates.network_gb_s * 1e9),
        "save": 12 * model.parameters / (rates.disk_gb_s * 1e9 * hosts(gpus.train)) / load.save_every,
    }
    return {**beside, **after, "step": max(beside.values()) + sum(after.values())}


def generate_s(model: Model, load: Load, rates: Rates, gpus: int) -> float:
    """Decoding reads every weight, and the keys and values of every rollout, once a token.

    Rollouts come and go as room gets free, and the longest has to end. Prompts cost nothing here: a group shares its.
    """
    batch = min(rates.decode_batch, load.rollouts / gpus)
    context = load.prompt_tokens + load.reply_tokens / 2
    cache_bytes = batch * context * 4 * model.layers * model.kv_width
    token_s = (2 * model.parameters + cache_bytes) / (rates.hbm_gb_s * 1e9 * rates.hbm_share)
    return token_s * max(load.longest_tokens, load.reply_tokens * load.rollouts / gpus / batch)


def update_s(model: Model, load: Load, rates: Rates, gpus: int) -> float:
    """Rows are dealt out; each gathers the weights in bf16 twice and reduces gradients in float32, beside its arithmetic."""
    rows = ceil(ceil(load.tokens / load.row_tokens) / gpus)
    compute_s = 6 * model.parameters * load.row_tokens / (rates.train_tflops * 1e12)
    link_gb_s = rates.nvlink_gb_s if gpus <= HOST_GPUS else rates.network_gb_s
    exchange_s = 8 * model.parameters * (gpus - 1) / gpus / (link_gb_s * 1e9)
    return rows * max(compute_s, exchange_s)


def train_gib(model: Model, load: Load, gpus: int) -> float:
    """GiB on a GPU that trains: 16 bytes a parameter spread over all, one layer whole, and inputs kept for recomputing."""
    layer = model.parameters / model.layers * 2
    return (16 * model.parameters / gpus + layer + 2 * model.layers * load.row_tokens * model.hidden) / GIB


def hosts(gpus: int) -> int:
    return ceil(gpus / HOST_GPUS)


def divisions(gpus: int) -> Iterator[Division]:
    """Ways to divide GPUs: by whole hosts, or one by one where there are few."""
    unit = HOST_GPUS if gpus > 4 * HOST_GPUS else 1
    for train in range(unit, gpus, unit):
        for verify in range(1, min(gpus - train, 4 * HOST_GPUS)):
            yield Division(train, gpus - train - verify, verify)


def best(model: Model, load: Load, rates: Rates, gpus: int) -> tuple[Division, dict[str, float]]:
    """The division whose step is shortest."""
    fitting = [d for d in divisions(gpus) if train_gib(model, load, d.train) <= rates.gpu_gib]
    if not fitting:
        raise SystemExit(f"{gpus} GPUs do not hold a {model.name} in training.")
    found = min(fitting, key=lambda d: phases(model, load, rates, d)["step"])
    return found, phases(model, load, rates, found)


def table(cases: list[tuple[Model, Load, int]], rates: Rates) -> str:
    """Markdown, a column a case."""
    columns: list[dict[str, str]] = []
    for model, load, gpus in cases:
        division, seconds = best(model, load, rates, gpus)
        columns.append(
            {
                "": f"{model.name}, {gpus:,} GPUs",
                "rollouts": f"{load.rollouts:,}",
                "train / sample / verify": f"{division.train} / {division.sample} / {division.verify}",
                **{f"{name}, s": f"{value:.1f}" for name, value in seconds.items()},
                "rollouts a second": f"{load.rollouts / seconds['step']:,.0f}",
                "longest": max((name for name in seconds if name != "step"), key=lambda name: seconds[name]),
            }
        )
    lines = [" | ".join([f"| {name}", *(column[name] for column in columns)]) + " |" for name in columns[0]]
    return "\n".join([lines[0], "|---" * (len(columns) + 1) + "|", *lines[1:]])


def usual(gpus: list[int], tasks: list[int]) -> list[tuple[Model, Load, int]]:
    """Both models on each number of GPUs, with so many tasks a step."""
    return [(m, replace(Load(), tasks=t), g) for m in MODELS for g, t in zip(gpus, tasks, strict=True)]


def main() -> None:
    """Print the inputs and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, action="append", help="64 and 1,000 if not given")
    parser.add_argument("--tasks", type=int, action="append", help="of a step, one for each --gpus")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an input of the table below")
    args = parser.parse_args()
    load, rates = Load(), Rates()
    for setting in args.set:
        name, _, value = setting.partition("=")
        if name in {f.name for f in fields(Load)}:
            load = replace(load, **{name: int(value)})
        elif name in {f.name for f in fields(Rates)}:
            rates = replace(rates, **{name: float(value)})
        else:
            parser.error(f"--set {name}: there is no such input")
    sizes, tasks = args.gpus or SIZES[0], args.tasks or SIZES[1]
    if len(sizes) != len(tasks):
        parser.error("give --tasks once for each --gpus")
    cases = [(model, replace(load, tasks=one.tasks), gpus) for model, one, gpus in usual(sizes, tasks)]
    for f in fields(Rates):
        print(f"{f.name} = {getattr(rates, f.name):g} ({f.metadata['source']})")
    print(*(f"{name} = {value}" for name, value in asdict(load).items()), sep=", ")
    print(table(cases, rates))


if __name__ == "__main__":
    main()
