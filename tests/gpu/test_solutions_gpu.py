"""Worked solutions compiled for the GPU, at ragged and full size, against float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kernrl.tasks.grammar.generate import make_task
from kernrl.tasks.solutions.run_solutions import Bench, draw_like, load_module

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


@pytest.mark.parametrize("index", range(12))
def test_solutions_are_right_on_the_gpu(index: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    task = make_task(2, 31, index)
    modules = [load_module(s.triton_code, tmp_path / f"solution_{index}_{i}.py") for i, s in enumerate(task.solutions)]
    for name in ("ragged", "full"):
        input_set = task.input_set(name)
        assert input_set is not None
        bench = Bench(task, input_set, "cuda")
        inputs = draw_like(bench.likes, "normal", seed=index)
        truth = bench.truth(inputs)
        for solution, module in zip(task.solutions, modules, strict=True):
            agreement = bench.compare(bench.answer(module), inputs, truth)
            assert agreement.ok, (solution.style, name, agreement)
