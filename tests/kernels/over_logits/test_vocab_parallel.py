"""The vocabulary-parallel losses: two gloo processes on a CPU against one process in float64."""

import os
import subprocess
import sys

import pytest
import torch
from support import ROOT
from support.parallel_cases import TOLERANCE, cases, reference

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> list[dict[str, dict]]:
    """What each of two ranks makes of the cases."""
    folder = tmp_path_factory.mktemp("ranks")
    torch.save(cases(), folder / "cases.pt")
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT}/tests"}
    script = ROOT / "tests" / "support" / "parallel_losses.py"
    running = [
        subprocess.Popen(
            [sys.executable, script, str(rank), "2", folder / "meeting", folder / "cases.pt", folder / f"{rank}.pt"],
            env=env, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in running:
            _, errors = process.communicate(timeout=120)
            assert process.returncode == 0, errors[-2000:]
    finally:
        for process in running:
            process.kill()
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in cases() if name not in ("too large", "negative")])
def test_two_ranks_make_what_one_process_does(outcomes, name):
    case, each = cases()[name], [outcome[name] for outcome in outcomes]
    want, limit = reference(case), TOLERANCE[case["inputs"].dtype]
    for got in each:
        assert abs(got["loss"] - want["loss"]) <= limit * max(1, abs(want["loss"]))
        for metric, value in want["metrics"].items():
            torch.testing.assert_close(got["metrics"][metric].double(), value.double(), rtol=limit, atol=limit, msg=metric)
    assert torch.equal(each[0]["loss"], each[1]["loss"])
    joined = {"inputs": torch.cat([got["inputs"] for got in each], -1)}
    if "weight" in case:
        assert torch.equal(each[0]["inputs"], each[1]["inputs"])
        joined = {"inputs": each[0]["inputs"], "weight": torch.cat([got["weight"] for got in each])}
    for which, gradient in joined.items():
        error = (gradient.double() - want[which]).norm() / want[which].norm()
        assert error <= limit, which
        if which == "inputs":
            assert (gradient[~case["options"]["mask"]] == 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["too large", "negative"])
def test_an_id_that_no_rank_has_is_an_error_on_every_rank(outcomes, name):
    for outcome in outcomes:
        assert "no rank's columns" in outcome[name]["error"]
