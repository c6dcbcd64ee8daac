"""Optimise whole models, built from their published configurations with fresh weights, and time them end to end.

    python scripts/bench_optimize_models.py --out models.json                 # all three, whole, on a GPU: nine minutes
    python scripts/bench_optimize_models.py --models llama --layers 4 --budget 45 --out models.json    # on a GPU, 90 s
    python scripts/bench_optimize_models.py --small --budget 20 --out /tmp/models.json    # a look, on a CPU

resnet50: He et al. 2016, batch 64 of 224 x 224. vit: ViT-B/16, Dosovitskiy et al. 2021, batch 64. llama: the shapes of
TinyLlama 1.1B (22 layers, width 2048, RMS norm, SwiGLU), 4 sequences of 512 tokens. Architectures come from transformers.
`--layers` takes the first so many of the transformers' layers.

Times are CUDA events around `forward`, in turns, launches from Python included, and as CUDA graphs, without them. A speedup is
the median over turns with its 95 % interval. Without a GPU nothing is timed. Errors are against float64, relative, in RMS.

`--out` is written after every step, so it also stands after a kill. What it has whole is left out, so that several commands
measure one after the other; what was begun is measured again. Each model has a process of its own: a fault on the GPU ends one.
The record is `docs/benchmarks/optimize_models.json`.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from optimize_figures import listed
from torch import Tensor, nn

import kernrl
from kernrl.files import replace_file
from kernrl.optimization.models.agreement import disagreement
from kernrl.runs.run_directory import environment
from kernrl.verifier.base.float64_mode import Float64Mode
from kernrl.verifier.base.precision import policy_flags
from kernrl.verifier.replay.timing import interval

ROUNDS, WARM_UP = 20, 3

REST_S = 15
"""After torch.compile, whose workers take the cores for a while: a model that waits for Python would look slower."""

TITLES = {
    "resnet50": "ResNet-50, batch 64",
    "vit": "ViT-B/16, batch 64",
    "llama": "TinyLlama 1.1B, 4 × 512 tokens",
}


class Output(nn.Module):
    """A model of transformers that takes one tensor and gives one."""

    def __init__(self, model: nn.Module, name: str):
        super().__init__()
        self.model, self.name = model, name

    def forward(self, x: Tensor) -> Tensor:
        """The first hidden state, image features or logits."""
        return getattr(self.model(x), self.name)


def resnet50(small: bool, layers: int | None = None) -> tuple[nn.Module, Tensor]:
    """ResNet-50."""
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 48, 64], embedding_size=8) if small else ResNetConfig()
    images = torch.randn(2, 3, 32, 32) if small else torch.randn(64, 3, 224, 224)
    return Output(ResNetModel(config), "pooler_output"), images


def vit(small: bool, layers: int | None = None) -> tuple[nn.Module, Tensor]:
    """ViT-B/16."""
    from transformers import ViTConfig, ViTModel

    tiny: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "image_size": 32,
    }
    images = torch.randn(2, 3, 32, 32) if small else torch.randn(64, 3, 224, 224)
    shape: dict[str, Any] = (tiny if small else {}) | ({"num_hidden_layers": layers} if layers else {})
    return Output(ViTModel(ViTConfig(**shape), add_pooling_layer=False), "last_hidden_state"), images


def llama(small: bool, layers: int | None = None) -> tuple[nn.Module, Tensor]:
    """TinyLlama's shapes."""
    from transformers import LlamaConfig, LlamaModel

    shape: dict[str, Any] = {"vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22}
    shape |= {"num_attention_heads": 32, "num_key_value_heads": 4, "use_cache": False}
    if small:
        shape |= {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        shape |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    shape |= {"num_hidden_layers": layers} if layers else {}
    ids = torch.randint(0, shape["vocab_size"], (2, 16) if small else (4, 512))
    return Output(LlamaModel(LlamaConfig(**shape)), "last_hidden_state"), ids


MODELS: dict[str, Callable[..., tuple[nn.Module, Tensor]]] = {"resnet50": resnet50, "vit": vit, "llama": llama}


Times = dict[str, list[float]]
"""Model → milliseconds of each turn."""


@torch.no_grad()
def times_ms(models: Mapping[str, Callable[[Tensor], object]], x: Tensor) -> Times:
    """Milliseconds of each model's forward, in turns: forth in one, back in the next."""
    seen: Times = {name: [] for name in models}
    for turn in range(WARM_UP + ROUNDS):
        for name, model in [*models.items()][:: -1 if turn % 2 else 1]:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()  # pyright: ignore[reportCallIssue]
            model(x)
            end.record()  # pyright: ignore[reportCallIssue]
            torch.cuda.synchronize()
            if turn >= WARM_UP:
                seen[name].append(begin.elapsed_time(end))
    return seen


@torch.no_grad()
def graph_times_ms(models: Mapping[str, Callable[[Tensor], object]], x: Tensor) -> Times:
    """Milliseconds of each model's forward as a CUDA graph, in turns; without those that cannot be captured."""
    graphs: dict[str, Callable[[Tensor], object]] = {}
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for name, model in models.items():
            for _ in range(WARM_UP):
                model(x)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, stream=stream):
                    model(x)
            except RuntimeError as error:
                print(f"{name} cannot be captured: {error}", flush=True)
                continue
            graphs[name] = lambda _, graph=graph: graph.replay()
        return times_ms(graphs, x)


def timed(times: Times, kind: str = "") -> dict[str, Any]:
    """Median milliseconds of each model; how much faster than each other the optimised one is, with its interval; the turns.

    Args:
        kind: What the names of these have in them.
    """
    speedups = {}
    for name, theirs in times.items():
        if name == "kernrl" or "kernrl" not in times:
            continue
        logs = [math.log(one / mine) for one, mine in zip(theirs, times["kernrl"], strict=True)]
        figure = (statistics.median(logs), *interval(logs))
        speedups[name] = dict(zip(("value", "low", "high"), map(math.exp, figure), strict=True))
    medians = {name: statistics.median(own) for name, own in times.items()}
    turns = {name: [round(ms, 4) for ms in own] for name, own in times.items()}
    return {f"ms{kind}": medians, f"speedups{kind}_x": speedups, f"turns{kind}_ms": turns}


@torch.no_grad()
def relative_errors(models: Mapping[str, nn.Module], x: Tensor, precision: str) -> dict[str, float]:
    """How far each model is from the first in float64, relative to that, in RMS."""
    exact = copy.deepcopy(next(iter(models.values()))).double()
    with policy_flags(precision):
        found = {name: model(x) for name, model in models.items()}
        with Float64Mode(precision):
            truth = exact(x.double() if x.is_floating_point() else x)
    return {name: float((y.double() - truth).norm() / truth.norm()) for name, y in found.items()}


def measure(name: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One model: what is known of it, more and more."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):  # a billion numbers take a CPU a while
        model, x = MODELS[name](given.small, given.layers)
    model.eval()
    started = time.monotonic()
    fast = kernrl.optimize(model, x, budget_s=given.budget, precision=given.precision, candidates=given.n)
    report: Any = fast.kernrl_report
    row: dict[str, Any] = {"budget_s": given.budget, "seconds": time.monotonic() - started, "clock": report.clock}
    row["swapped"] = sum(len(part.paths) for part in report.parts if part.swapped)
    row["of"] = sum(len(part.paths) for part in report.parts)
    row["parts"] = [{"paths": len(p.paths), "swapped": p.swapped, "speedups_x": p.speedups_x} for p in report.parts]
    row |= {"checked": report.checked, "report": str(report)}
    yield row
    models: dict[str, nn.Module] = {"eager": model, "kernrl": fast}
    row["agrees"] = disagreement(model, fast, (x,), given.precision, 1) or "yes"
    row["errors"] = relative_errors(models, x, given.precision)
    same = list(fast.state_dict()) == list(model.state_dict())
    row["state_dict_unchanged"] = same and all(
        torch.equal(a, b) for a, b in zip(fast.parameters(), model.parameters(), strict=True)
    )
    yield row
    if device == "cuda":
        with policy_flags(given.precision, autotune=True):
            row |= timed(times_ms(models, x))
            yield row  # torch.compile may take longer than there is
            began = time.monotonic()
            models["compile"] = torch.compile(model)  # pyright: ignore[reportArgumentType]
            with torch.no_grad():
                models["compile"](x)
            row["compile_seconds"] = time.monotonic() - began
            time.sleep(REST_S)
            row |= timed(times_ms(models, x))
            yield row
            # last: a capture that fails may leave the allocator in another state
            row |= timed(graph_times_ms(models, x), "_as_graphs")
    yield row | {"whole": True}


class Record:
    """The file of results, a row for each model and choice of layers, precision and size."""

    def __init__(self, path: Path, commit: str | None):
        self.path, about = path, environment()
        self.rows: list[dict[str, Any]] = json.loads(path.read_text())["models"] if path.exists() else []
        self.versions, self.date = about["versions"], time.strftime("%Y-%m-%d")
        self.where = {"gpu": about["gpu"], "commit": commit or about["commit"], "date": self.date}

    def has(self, key: Mapping[str, Any]) -> bool:
        """Whether a row is there, and whole."""
        return any(row.get("whole") and key.items() <= row.items() for row in self.rows)

    def put(self, key: Mapping[str, Any], row: Mapping[str, Any]) -> None:
        """Write the file with a row in place of the one that was there."""
        self.rows = [old for old in self.rows if not key.items() <= old.items()] + [{**key, **self.where, **row}]
        about = {name: listed(row[name] for row in self.rows) for name in ("gpu", "commit")}
        record = {"versions": self.versions, **about, "date": self.date, "models": self.rows}
        replace_file(self.path, json.dumps(record, indent=2) + "\n")


def main(words: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    words = sys.argv[1:] if words is None else words
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
    parser.add_argument("--small", action="store_true", help="tiny sizes, for a look")
    parser.add_argument("--layers", type=int, help="of vit and llama: so many in place of all")
    parser.add_argument("--budget", type=float, default=100.0, help="seconds for each model; three of them fit nine minutes")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--commit", help="of this code, where its folder is not a repository")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(words)
    if len(given.models) > 1:
        codes = [subprocess.call([sys.executable, __file__, *words, "--models", name]) for name in given.models]
        sys.exit(max(map(abs, codes)))
    [name] = given.models
    layers = None if name == "resnet50" else given.layers
    title = TITLES[name] + (f", {layers} layers" if layers else "") + (", at tiny sizes" if given.small else "")
    key = {"model": name, "title": title, "layers": layers, "precision": given.precision, "small": given.small}
    record = Record(given.out, given.commit)
    if record.has(key):
        print(f"{given.out} has {title}.")
        return
    row: dict[str, Any] = {}
    try:
        for row in measure(name, given):
            record.put(key, row)
            print(json.dumps({k: v for k, v in row.items() if k != "report"}), flush=True)
    except Exception as error:
        record.put(key, row | {"failed": f"{type(error).__name__}: {error}"})
        raise
    print(row["report"], flush=True)


if __name__ == "__main__":
    main()
