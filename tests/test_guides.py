"""The guides whose code runs on any machine, run as they are printed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import ROOT

from kernrl.rollouts.own_reward import own_reward
from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict

GUIDES = ROOT / "docs" / "guides"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL)


def test_the_guides_reward_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_rewards.py").write_text(blocks("own_reward.md")[0])
    worth = own_reward("my_rewards:speed_against_compile")

    def verdict(status: Status, speedup: Speedup | None = None) -> Verdict:
        timing = Timing("measured", "H200", 1.0, {}, {"compile": speedup}) if speedup else None
        return Verdict(status, Stage.TIMING, "", "t", "sha", "fp32", timing=timing)

    cases = [
        (verdict(Status.WRONG), 0.0),
        (verdict(Status.CORRECT), 1.0),
        (verdict(Status.CORRECT, Speedup(2.7, 2.6, 2.8, False)), 1.0),
        (verdict(Status.CORRECT, Speedup(2.718281828459045, 2.6, 2.8, True)), 2.0),
    ]
    for judged, value in cases:
        found = worth(judged)
        assert found is not None
        assert found.value == pytest.approx(value)


@pytest.mark.slow
def test_the_guide_to_testing_kernels_runs(tmp_path: Path) -> None:
    task, candidate, _ = blocks("verify_a_kernel.md")
    (tmp_path / "my_task.py").write_text(task)
    (tmp_path / "candidate.py").write_text(candidate)
    (tmp_path / "test_kernels.py").write_text("\n".join(blocks("test_kernels.md")))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_kernels.py"],
        cwd=tmp_path,
        env={"PATH": "", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 2 skipped" in done.stdout
    assert "no GPU to measure a speedup on" in done.stdout


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the verifier's cache
    torch.set_num_threads(1)
    cells = json.loads((ROOT / "docs" / "notebooks" / "kernrl.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        assert not cell.get("outputs"), "what it prints is seen where it is run"
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    said = capsys.readouterr().out
    assert "correct m" in said
    assert "Wrong on the" in said
    assert "class ModelNew" in said
