"""The script that compiles worked solutions: what it says of a product, and of a Graph that is drawn."""

from __future__ import annotations

import compile_solutions as script  # pyright: ignore[reportMissingImports]
import pytest
from support.graph_tasks import module

from kernrl.tasks.task import Task


@pytest.mark.slow
def test_it_says_what_each_kernel_takes(capsys: pytest.CaptureFixture[str]) -> None:
    source = module("self.l = nn.Linear(C, 512)", "return self.l(x).relu()", "torch.randn(B, C)", B=4096, C=512)
    rows = script.examined(script.Job(Task("t", source), ["bf16"], "^dot(-second)?$", work=1 << 30))
    assert {style for row in rows for style in row.styles} == {"dot", "dot-second"}
    for row in rows:
        assert set(row.shared) == set(script.ARCHES)
        assert 0 < row.shared["sm_90"] <= 232_448
        assert not list(script.faults(row))
    (slow,) = rows[:1]
    slow.shared["sm_90"], slow.cpu_s = 278_528, 12.0
    script.report(rows)
    said = capsys.readouterr().out
    assert f"sm_90: 1 of {len(rows)} kernels exceed 232448 bytes" in said
    assert "278528 bytes of shared memory" in said
    assert "12.0 s of CPU to compile" in said


@pytest.mark.slow
def test_a_drawn_graph_is_examined_as_nano_learns_it() -> None:
    rows = [row for index in range(2) for row in script.examined(script.Job(index, ["tf32"], "^fused$", work=1 << 30))]
    assert rows
    assert not [row.problem for row in rows if row.problem]
