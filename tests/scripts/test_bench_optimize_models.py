"""The benchmark of whole models: what was stopped is measured by another command, and speedups are those of the turns."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench_optimize_models as bench  # pyright: ignore[reportMissingImports]
import pytest
import torch
from torch import nn

STEPS = [{"seconds": 100.0, "report": "swapped: all"}, {"agrees": "yes"}, {"ms": {"eager": 2.0}}, {"whole": True}]


class Measured:
    """Stands for `measure`: as many steps as are asked for, then what a kill or a fault does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.asked: list[str] = []
        self.steps, self.ends_with = len(STEPS), None
        about = {"gpu": "NVIDIA H200", "commit": "aaaaaaa", "versions": {"torch": "2.11.0"}}
        self.environment = about
        monkeypatch.setattr(bench, "measure", self.measure)
        monkeypatch.setattr(bench, "environment", lambda: self.environment)

    def measure(self, name: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
        self.asked.append(name)
        row: dict[str, Any] = {}
        for step in STEPS[: self.steps]:
            row = row | step
            yield row
        if self.ends_with is not None:
            raise self.ends_with


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    return Measured(monkeypatch)


def run(out: Path, *words: str) -> Any:
    bench.main([*words, "--out", str(out)])
    return json.loads(out.read_text())


def test_what_was_begun_is_measured_again_and_what_is_whole_is_not(measured: Measured, tmp_path: Path) -> None:
    out = tmp_path / "models.json"
    measured.steps, measured.ends_with = 2, KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(out, "--models", "vit")
    [row] = json.loads(out.read_text())["models"]
    assert (row["agrees"], row.get("whole"), row["title"]) == ("yes", None, "ViT-B/16, batch 64")
    measured.steps, measured.ends_with = len(STEPS), None
    measured.environment = measured.environment | {"gpu": "NVIDIA H100", "commit": "bbbbbbb"}
    record = run(out, "--models", "vit")
    assert [(row["whole"], row["gpu"], row["commit"]) for row in record["models"]] == [(True, "NVIDIA H100", "bbbbbbb")]
    assert run(out, "--models", "vit") == record
    assert measured.asked == ["vit", "vit"]


def test_other_layers_precisions_and_sizes_are_other_rows(measured: Measured, tmp_path: Path) -> None:
    out = tmp_path / "models.json"
    run(out, "--models", "llama", "--layers", "4")
    run(out, "--models", "llama", "--commit", "bbbbbbb")
    run(out, "--models", "llama", "--small")
    record = run(out, "--models", "llama", "--precision", "bf16")
    assert [row["title"].partition("tokens")[2] for row in record["models"]] == [", 4 layers", "", ", at tiny sizes", ""]
    assert record["commit"] == "aaaaaaa, bbbbbbb"
    run(out, "--models", "resnet50", "--layers", "4")
    run(out, "--models", "resnet50")
    assert measured.asked == ["llama"] * 4 + ["resnet50"]  # which has no such layers


def test_a_fault_is_recorded_with_what_was_known(measured: Measured, tmp_path: Path) -> None:
    out = tmp_path / "models.json"
    measured.steps, measured.ends_with = 1, RuntimeError("CUDA error: an illegal memory access")
    with pytest.raises(RuntimeError):
        run(out, "--models", "vit")
    [row] = json.loads(out.read_text())["models"]
    assert row["failed"] == "RuntimeError: CUDA error: an illegal memory access"
    assert row["seconds"] == 100.0


def test_each_of_several_models_has_a_process(measured: Measured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    def call(words: list[str]) -> int:
        called.append(words[2:])
        bench.main(words[2:])  # as the process would
        return -11 if "vit" in words else 0

    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(call=call))
    with pytest.raises(SystemExit) as ended:
        run(tmp_path / "models.json", "--budget", "45")
    assert ended.value.code == 11  # that of the one that crashed
    assert measured.asked == ["resnet50", "vit", "llama"]
    assert all(words[:2] == ["--budget", "45"] for words in called)


def test_a_speedup_is_the_median_over_turns_with_an_interval() -> None:
    ours = [10.0, 11.0, 10.0, 30.0, 10.0, 10.0, 12.0]  # one turn was disturbed, which the ratio of that turn is not
    found = bench.timed({"eager": [1.5 * ms for ms in ours], "kernrl": ours, "compile": [8.0] * 7}, "_as_graphs")
    assert found["ms_as_graphs"] == {"eager": 15.0, "kernrl": 10.0, "compile": 8.0}
    eager, compiled = (found["speedups_as_graphs_x"][name] for name in ("eager", "compile"))
    assert eager == pytest.approx({"value": 1.5, "low": 1.5, "high": 1.5})
    assert compiled["value"] == pytest.approx(0.8)
    assert compiled["low"] < 0.75 < compiled["high"] <= 0.8 + 1e-9
    assert set(found["speedups_as_graphs_x"]) == {"eager", "compile"}
    assert found["turns_as_graphs_ms"]["kernrl"] == ours
    assert bench.timed({"eager": [1.0, 2.0]})["speedups_x"] == {}  # ours could not be captured


def test_errors_are_of_each_model_beside_float64() -> None:
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    off = nn.Linear(64, 64)
    off.load_state_dict({name: value * 1.01 for name, value in model.state_dict().items()})
    found = bench.relative_errors({"eager": model, "kernrl": off}, torch.randn(8, 64), "fp32")
    assert found["kernrl"] == pytest.approx(0.01, rel=1e-3)
    assert 0 < found["eager"] < 1e-6
    assert model.weight.dtype == torch.float32


@pytest.mark.slow
def test_what_is_known_of_a_model_grows_until_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        SimpleNamespace(paths=("a", "b"), swapped=True, speedups_x={"eager": 2.0}),
        SimpleNamespace(paths=("c",), swapped=False, speedups_x={}),
    ]
    report = SimpleNamespace(parts=parts, clock="modelled", checked="The whole was not compared")

    def optimize(model: nn.Module, x: torch.Tensor, **settings: Any) -> nn.Module:
        assert settings == {"budget_s": 20.0, "precision": "tf32", "candidates": 4}
        model.__dict__["kernrl_report"] = report
        return model

    monkeypatch.setattr(bench.kernrl, "optimize", optimize)
    given = argparse.Namespace(small=True, layers=1, budget=20.0, precision="tf32", n=4)
    rows = [dict(row) for row in bench.measure("llama", given)]
    assert [row.get("whole") for row in rows] == [None, None, True]
    for before, after in itertools.pairwise(rows):
        assert before.items() <= after.items()
    assert (rows[-1]["swapped"], rows[-1]["of"], rows[-1]["agrees"]) == (2, 3, "yes")
    assert rows[-1]["errors"]["eager"] == rows[-1]["errors"]["kernrl"] > 0
    assert rows[-1]["state_dict_unchanged"]
    json.dumps(rows)
