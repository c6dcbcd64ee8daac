"""The vocabulary-parallel losses: two GPUs over NCCL against one process in float64."""

import os
import subprocess
import sys

import pytest
import torch
from support import ROOT
from support.parallel_cases import OPTIONS, TOLERANCE, cases, reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")]
# The kernels know no float64.
ON_GPUS = [*(f"{name}, float32" for name in OPTIONS), "bfloat16", "linear, torch.float32", "linear, entropy, torch.float32"]


def test_two_gpus_make_what_one_process_does(tmp_path):
    chosen = {name: case for name, case in cases().items() if name in ON_GPUS}
    assert len(chosen) == len(ON_GPUS)
    torch.save(chosen, tmp_path / "cases.pt")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT}/tests:{os.environ.get('PYTHONPATH', '')}"}
    script = ROOT / "tests" / "support" / "parallel_losses.py"
    files = [[tmp_path / name for name in ("meeting", "cases.pt", f"{rank}.pt")] for rank in range(2)]
    running = [
        subprocess.Popen(
            [sys.executable, script, str(rank), "2", *own, "cuda"], env=env, stderr=subprocess.PIPE, text=True
        )
        for rank, own in enumerate(files)
    ]  # fmt: skip
    try:
        for process in running:
            _, errors = process.communicate(timeout=180)
            assert process.returncode == 0, errors[-2000:]
    finally:
        for process in running:
            process.kill()
    outcomes = [torch.load(tmp_path / f"{rank}.pt", map_location="cpu") for rank in range(2)]
    for name, case in chosen.items():
        each, want, limit = [outcome[name] for outcome in outcomes], reference(case), TOLERANCE[case["inputs"].dtype]
        for got in each:
            # powers of ratios multiply the rounding of log-probs; gradients, below, are the finer test
            assert abs(got["loss"] - want["loss"]) <= 3 * limit * max(1, abs(want["loss"])), name
        assert torch.equal(each[0]["loss"], each[1]["loss"]), name
        pairs = [(torch.cat([got["inputs"] for got in each], -1), want["inputs"])]
        if "weight" in case:
            weights = torch.cat([got["weight"] for got in each])
            pairs = [(got["inputs"], want["inputs"]) for got in each] + [(weights, want["weight"])]
        for got, exact in pairs:
            assert (got.double() - exact).norm() / exact.norm() <= limit, name
