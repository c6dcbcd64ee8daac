"""Optimise whole models, built from their published configurations with fresh weights, and time them end to end.

    python scripts/bench_optimize_models.py --models llama --layers 4 --budget 45 --out models.json    # on a GPU, 90 s
    python scripts/bench_optimize_models.py --out models.json                 # all three, whole, on a GPU: nine minutes
    python scripts/bench_optimize_models.py --small --budget 20 --out /tmp/models.json    # a look, on a CPU

resnet50: He et al. 2016, batch 64 of 224 x 224. vit: ViT-B/16, Dosovitskiy et al. 2021, batch 64. llama: the shapes of
TinyLlama 1.1B (22 layers, width 2048, RMS norm, SwiGLU), 4 sequences of 512 tokens. Architectures come from transformers.
`--layers` takes the first so many of the transformers' layers.
Times are CUDA events around `forward`, in turns, launches from Python included, and as CUDA graphs, without them. Without a GPU
nothing is timed. What is known is written after every step. A model that `--out` has already is left out, so that several
commands measure one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import kernrl
from kernrl.files import replace_file
from kernrl.optimization.agreement import disagreement
from kernrl.runs.run_directory import environment
from kernrl.verifier.base.precision import policy_flags

ROUNDS = 20


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


@torch.no_grad()
def median_ms(models: dict[str, nn.Module], x: Tensor) -> dict[str, float]:
    """Median milliseconds of each model's forward, in turns."""
    seen: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(ROUNDS + 3):
        for name, model in models.items():
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()  # pyright: ignore[reportCallIssue]
            model(x)
            end.record()  # pyright: ignore[reportCallIssue]
            torch.cuda.synchronize()
            if turn >= 3:
                seen[name].append(begin.elapsed_time(end))
    return {name: statistics.median(times) for name, times in seen.items()}


@torch.no_grad()
def graph_ms(models: dict[str, nn.Module], x: Tensor) -> dict[str, float]:
    """Median milliseconds of each model's forward as a CUDA graph, in turns; without those that cannot be captured."""
    graphs: dict[str, Any] = {}
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for name, model in models.items():
            for _ in range(3):
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
        return median_ms(graphs, x)


def measure(name: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One model: its row, as more of it is known."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, x = MODELS[name](given.small, given.layers)
    model, x = model.eval().to(device), x.to(device)
    started = time.monotonic()
    fast = kernrl.optimize(model, x, budget_s=given.budget, precision=given.precision, candidates=given.n)
    report: Any = fast.kernrl_report
    row: dict[str, Any] = {"model": name, "layers": given.layers, "precision": given.precision}
    row |= {"seconds": time.monotonic() - started, "clock": report.clock, "report": str(report)}
    row["swapped"] = sum(len(part.paths) for part in report.parts if part.swapped)
    row["parts"] = [{"paths": len(p.paths), "swapped": p.swapped, "speedups_x": p.speedups_x} for p in report.parts]
    yield row
    row["agrees"] = disagreement(model, fast, (x,), given.precision, 1) or "yes"
    same = list(fast.state_dict()) == list(model.state_dict())
    row["state_dict_unchanged"] = same and all(
        torch.equal(a, b) for a, b in zip(fast.parameters(), model.parameters(), strict=True)
    )
    yield row
    if device == "cuda":
        with policy_flags(given.precision, autotune=True):
            models: dict[str, nn.Module] = {"eager": model, "kernrl": fast}
            yield _timed(row, models, x)  # torch.compile may take longer than there is
            began = time.monotonic()
            models["compile"] = torch.compile(model)  # pyright: ignore[reportArgumentType]
            with torch.no_grad():
                models["compile"](x)
            row["compile_seconds"] = time.monotonic() - began
            yield _timed(row, models, x)


def _timed(row: dict[str, Any], models: dict[str, nn.Module], x: Tensor) -> dict[str, Any]:
    """The row with times, and how much faster than each other model the optimised one is."""
    for kind, clock in (("", median_ms), ("_as_graphs", graph_ms)):
        times = clock(models, x)
        row[f"ms{kind}"] = times
        row[f"speedups{kind}_x"] = {k: ms / times["kernrl"] for k, ms in times.items() if k != "kernrl" and "kernrl" in times}
    return row


def main(words: Sequence[str] | None = None) -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=[*MODELS], default=[*MODELS])
    parser.add_argument("--small", action="store_true", help="tiny sizes, for a look")
    parser.add_argument("--layers", type=int, help="of vit and llama: so many in place of all")
    parser.add_argument("--budget", type=float, default=150.0, help="seconds for each model; three of them fit nine minutes")
    parser.add_argument("--precision", default="tf32")
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(words)
    rows = json.loads(given.out.read_text())["models"] if given.out.exists() else []
    for name in given.models:
        if any(row["model"] == name for row in rows):
            continue
        row: dict[str, Any] = {}
        for row in measure(name, given):
            record = {**environment(), "date": time.strftime("%Y-%m-%d"), "small": given.small, "models": [*rows, row]}
            replace_file(given.out, json.dumps(record, indent=2) + "\n")
            print(json.dumps({k: v for k, v in row.items() if k != "report"}), flush=True)
        rows.append(row)
        print(row["report"], flush=True)


if __name__ == "__main__":
    main()
