"""`kernrl optimize` on a GPU: candidates are timed against eager, the best against every baseline, and best.py stands alone.

python -m pytest tests/gpu/test_optimize_gpu.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import ROOT
from torch import nn

import kernrl
from kernrl import cli

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "guides" / "optimize.md").read_text()
    path = tmp_path / "my_module.py"
    path.write_text(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0])
    return path


def test_the_best_are_timed_against_every_baseline(module: Path) -> None:
    assert cli.run(["optimize", "my_module.py", "--output", "out", "--budget", "60s", "--n", "12", "--quiet"]) == 0
    results = json.loads(Path("out/results.json").read_text())
    assert results["clock"] == "measured"
    assert results["faster"], results["sentence"]
    rows = [json.loads(line) for line in Path("out/candidates.jsonl").read_text().splitlines()]
    timed = [row["verdict"]["timing"]["speedups_x"] for row in rows if row["verdict"]["timing"]]
    assert timed
    assert all(list(speeds) == ["eager"] for speeds in timed)
    assert 1 <= len(results["finals"]) <= 5
    assert set(results["ranking"][0]["speedups_x"]) == {"eager", "compile"}
    checked = subprocess.run([sys.executable, "out/best.py"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "full: agrees with the reference" in checked.stdout
    assert re.search(r"\d\.\d\d× \[", checked.stdout)


def test_tasks_side_by_side_are_right_and_timed(module: Path) -> None:
    folder = module.parent / "modules"
    folder.mkdir()
    text = module.read_text()
    for name in ("gelu", "silu", "relu", "tanh"):
        (folder / f"{name}.py").write_text(text.replace("functional.gelu", f"functional.{name}"))
    assert cli.run(["optimize", "modules", "--output", "many", "--budget", "60s", "--n", "6", "--quiet"]) == 0
    for result in json.loads(Path("many/results.json").read_text()):
        assert result["faster"], result["sentence"]
        assert set(result["ranking"][0]["speedups_x"]) == {"eager", "compile"}


def test_a_model_s_parts_are_swapped_and_the_whole_agrees() -> None:
    class Block(nn.Module):
        def __init__(self, width: int):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 64), nn.Linear(64, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.nn.functional.gelu(self.norm(x)) * 0.5 + x
            return x + self.down(torch.sigmoid(self.up(x)))

    torch.manual_seed(0)
    model = nn.Sequential(Block(4096), Block(4096)).cuda().eval()
    x = torch.randn(8192, 4096, device="cuda")
    fast = kernrl.optimize(model, x, budget_s=90, candidates=12)
    report = fast.kernrl_report
    assert report.clock == "measured"
    assert any(part.swapped for part in report.parts), str(report)
    assert "agrees with the original" in report.checked
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x), rtol=1e-3, atol=1e-3)
