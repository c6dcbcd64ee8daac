"""The benchmark of a suite: what is stopped is gone on with by another command, and the figures are of all modules."""

from __future__ import annotations

import importlib.util
import json
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from support import ROOT
from support.tiny import verdict_of

from kernrl.optimization import one_task
from kernrl.stages import optimize
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Status, Verdict

NAMES = ("layernorm_chw", "mixer_token_mlp", "ffn_down_gate")


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = importlib.util.spec_from_file_location("bench_optimize", ROOT / "scripts" / "bench_optimize.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Verifier:
    """Stands for HardenedVerifier: styles are twice as fast as eager and as fast as compile; Ctrl-C at one module."""

    stop_at: ClassVar[list[str]] = []
    judged: ClassVar[list[str]] = []

    def unfit(self, task: Task) -> str:
        return ""

    def __init__(self, config: object):
        known = {"gpus": [], "workers": 1, "cache_dir": None, "target": "sm_90"}
        self.evaluator = SimpleNamespace(start=lambda: None, precision_of=lambda task: task.precision, **known)

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    untimed = staticmethod(nullcontext)

    def submit(self, task: Task, candidate: str, *, fresh: bool = False) -> Future[Verdict]:
        if len(set(self.judged)) == len(self.stop_at) == 1 and task.id not in self.judged:
            raise KeyboardInterrupt
        self.judged.append(task.id)
        future: Future[Verdict] = Future()
        future.set_result(verdict_of(candidate, Status.CORRECT, speedup_x=2.0, compile_x=1.0, task_id=task.id))
        return future


@pytest.mark.slow
def test_a_stopped_run_is_finished_by_another_command_on_another_machine(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "suite"
    source.mkdir()
    for name in NAMES:
        (source / f"{name}.py").write_text((ROOT / "tests" / "foreign" / f"{name}.py").read_text())
    monkeypatch.setattr(optimize, "HardenedVerifier", Verifier)
    monkeypatch.setattr(one_task, "styles", lambda graphs, task, *_: iter([one_task_style(task)]))
    words = [str(source), "--n", "1", "--budget", "20", "--out", "bench.json"]
    Verifier.stop_at.append("second")
    bench.main([*words, "--run", "first"])
    record = json.loads(Path("bench.json").read_text())
    assert len(record["results"]) == record["modules"] == 1
    Verifier.stop_at.clear()
    bench.main([*words, "--run", "elsewhere"])
    record = json.loads(Path("bench.json").read_text())
    assert sorted(r["task"] for r in record["results"]) == sorted(NAMES)
    assert record["right"] == 1.0
    assert record["baselines"]["eager"] == {"faster": 1.0, "geomean_x": pytest.approx(2.0), "timed": 3}
    assert record["baselines"]["compile"]["faster"] == 0.0
    assert record["winners"] == {"style": 3}
    assert len(Verifier.judged) == 3  # none twice
    capsys.readouterr()
    bench.main([*words, "--run", "third"])
    assert "has every module" in capsys.readouterr().out


def one_task_style(task: Task) -> Any:
    from kernrl.optimization.trials import Proposal

    return Proposal(f"class ModelNew: name = {task.id!r}", "style", "fused")
