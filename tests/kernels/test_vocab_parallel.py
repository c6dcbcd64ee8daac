"""The vocabulary-parallel losses: two gloo processes on a CPU against one process in float64."""

import math
import os
import subprocess
import sys

import pytest
import torch
from support import ROOT

from kernrl.kernels import grpo_loss, linear_grpo_loss

torch.set_num_threads(1)
B, T, V, H = 3, 6, 40, 12
TEMPERATURE = 0.7
OPTIONS = {
    "clip, k3, mask": {"old": True, "ref": True, "beta": 0.1, "epsilon_high": 0.1},
    "entropy, on policy": {"entropy_coef": 0.2},
    "gspo": {"old": True, "loss_type": "gspo", "epsilon_high": 0.05},
    "vespo": {"old": True, "loss_type": "vespo"},
    "gmpo": {"old": True, "loss_type": "gmpo", "epsilon_high": 0.05},
    "sequence correction": {"rollout": True, "correction": "sequence_truncate", "correction_max": 1.1},
}
HALVES, UNEVEN = (0, 20, 40), (0, 27, 40)


def draw(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def make_case(options: dict, dtype: torch.dtype, ends: tuple, linear: bool = False) -> dict:
    ids = torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(1))
    ids[0, :4] = torch.tensor([0, ends[1] - 1, ends[1], V - 1])  # the edges of the shards
    inputs = draw(B, T, H if linear else V, seed=2)
    weight = draw(V, H, seed=3)
    if not linear:
        inputs[0, 4, : ends[1]] = -math.inf  # a shard with nothing in it
        inputs[0, 5, ids[0, 5]] = 25.0  # p_a -> 1
        inputs[1, 0, ids[1, 0]] = -60.0
        ids[0, 4] = V - 2
    inputs, weight = inputs.to(dtype), weight.to(dtype)
    logits = (inputs @ weight.t() if linear else inputs).double()
    logp = (logits / TEMPERATURE).log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    mask = torch.tensor([6, 4, 1])[:, None] > torch.arange(T)
    ids[1, 5] = -100
    inputs[1, 4] = math.nan
    given = {f"{name}_logprobs": logp + 0.3 * draw(B, T, seed=4 + i) for i, name in enumerate(("old", "ref", "rollout"))}
    given = {name: value for name, value in given.items() if options.get(name.removesuffix("_logprobs"))}
    rest = {name: value for name, value in options.items() if name not in ("old", "ref", "rollout")}
    advantages = draw(B, seed=9)
    case = {
        "inputs": inputs, "ids": ids, "ends": ends,
        "options": {"advantages": advantages, "mask": mask, "temperature": TEMPERATURE, **given, **rest},
    }  # fmt: skip
    return {**case, "weight": weight, "chunk_rows": 16} if linear else case


def cases() -> dict[str, dict]:
    made = {f"{name}, float64": make_case(options, torch.float64, HALVES) for name, options in OPTIONS.items()}
    made |= {f"{name}, float32": make_case(options, torch.float32, UNEVEN) for name, options in OPTIONS.items()}
    made["bfloat16"] = make_case(OPTIONS["clip, k3, mask"], torch.bfloat16, HALVES)
    for dtype in (torch.float64, torch.float32):
        made[f"linear, {dtype}"] = make_case(OPTIONS["clip, k3, mask"], dtype, UNEVEN, linear=True)
        made[f"linear, entropy, {dtype}"] = make_case(OPTIONS["entropy, on policy"], dtype, HALVES, linear=True)
    for name, bad in (("too large", V), ("negative", -1)):
        made[name] = make_case({}, torch.float64, HALVES)
        made[name]["ids"][0, 0] = bad
    return made


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


def reference(case: dict) -> dict:
    inputs = case["inputs"].double().requires_grad_()
    if "weight" in case:
        weight = case["weight"].double().requires_grad_()
        loss, metrics = linear_grpo_loss(inputs, weight, case["ids"], **case["options"])
    else:
        weight = None
        loss, metrics = grpo_loss(inputs, case["ids"], **case["options"])
    loss.backward()
    return {"loss": loss.detach(), "metrics": metrics, "inputs": inputs.grad, "weight": None if weight is None else weight.grad}


TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2**-8}


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
