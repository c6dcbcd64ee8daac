"""A GPU's actor on a real Ray: it times as this machine would, and an actor that is killed loses no candidate.

python -m pytest tests/gpu/test_cluster_gpu.py
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import TESTS, suite

from kernrl.config import VerifierConfig
from kernrl.verifier.base.verdict import Stage, Status
from kernrl.verifier.pool.ray import RayGpu
from kernrl.verifier.verifier import HardenedVerifier

pytest.importorskip("ray")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

TASK = suite.fixture_task("mish_chain")
GOOD = (TESTS / "honest" / "mish_chain_flat.py").read_text()


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HardenedVerifier]:
    kept = tmp_path_factory.mktemp("cache")  # the GPU's noise, which a restarted actor need not measure again
    with HardenedVerifier(VerifierConfig(executor="ray", cache_dir=kept, gpu_timeout_s=12)) as made:
        yield made


def gpu_actors() -> list[int]:
    """Process ids of Ray's workers that run a `GpuActor`, by the title that Ray gives them."""
    titles = [(int(path.parent.name), path.read_bytes()) for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    return [pid for pid, title in titles if title.startswith(b"ray::GpuActor")]


def test_a_right_candidate_is_timed_by_an_actor(verifier: HardenedVerifier) -> None:
    assert all(isinstance(gpu, RayGpu) for gpu in verifier.evaluator.gpus)
    verdict = verifier.verify(TASK, GOOD)
    assert (verdict.status, verdict.stage) == (Status.CORRECT, Stage.TIMING), verdict.reason
    assert verdict.timing
    assert verdict.timing.kind == "measured"
    speed = verdict.speedup()
    assert speed
    assert speed.significant
    assert 2 < speed.value < 8  # five pointwise kernels in one


def test_an_actor_survives_what_it_rejects(verifier: HardenedVerifier) -> None:
    wrong = verifier.verify(TASK, GOOD.replace("tl.exp(", "tl.exp2("))
    assert wrong.status is Status.WRONG, wrong.reason
    assert verifier.verify(TASK, f"{GOOD}\n# again").correct


def test_a_killed_actor_loses_no_candidate(verifier: HardenedVerifier) -> None:
    before = gpu_actors()
    assert before
    found = {}
    for done, (position, verdict) in enumerate(verifier.verify_many([(TASK, f"{GOOD}\n# {i}") for i in range(24)]), start=1):
        found[position] = verdict
        if done == 4:
            os.kill(before[0], signal.SIGKILL)
    assert set(found) == set(range(24))
    assert {verdict.status for verdict in found.values()} == {Status.CORRECT}, [v.reason for v in found.values()]
    assert set(gpu_actors()) != set(before)
