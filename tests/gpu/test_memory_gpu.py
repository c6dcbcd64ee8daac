"""Memory on a GPU: what was planned is what is taken, and out of memory harms nobody.

python -m pytest -m gpu -x -s tests/gpu/test_memory_gpu.py

A test that takes longer than `KERNRL_PATIENCE_S` (120) ends the run, after the stacks of all that its processes wait for.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from support import TESTS, suite

from kernrl.config import VerifierConfig
from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.solutions.from_graph.styles import write_solutions
from kernrl.tasks.task import Task
from kernrl.verifier.base.verdict import Status
from kernrl.verifier.rpc.processes import ask_for_stacks
from kernrl.verifier.verifier import HardenedVerifier

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

TASK = suite.fixture_task("mish_chain")
GOOD = (TESTS / "honest" / "mish_chain_flat.py").read_text()


PATIENCE_S = float(os.environ.get("KERNRL_PATIENCE_S", "120"))


@pytest.fixture(autouse=True)
def patience(request: pytest.FixtureRequest, verifier: HardenedVerifier) -> Iterator[None]:
    """Show what everybody waits for, and end, where a test hangs."""

    def give_up() -> None:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():  # pyright: ignore
            print(f"{request.node.name} has not ended in {PATIENCE_S:g} s; the GPU: {verifier.doing()}", flush=True)
            faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
            ask_for_stacks()
            time.sleep(2.0)
            os._exit(1)

    timer = threading.Timer(PATIENCE_S, give_up)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


@pytest.fixture(scope="module")
def verifier() -> Iterator[HardenedVerifier]:
    with HardenedVerifier(VerifierConfig(cache=False, precision="tf32")) as made:
        yield made


@pytest.fixture(autouse=True)
def next_verdict_is_unchanged(verifier: HardenedVerifier) -> Iterator[None]:
    yield
    assert verifier.verify(TASK, GOOD).status is Status.CORRECT


def foreign(name: str) -> Task:
    return with_input_sets(load_tasks(TESTS / "foreign" / f"{name}.py").tasks[0])


@pytest.mark.parametrize("name", ["climate_film_big", "giant_residual_ffn_ln", "segmentation_confidence", "autoencoder_error"])
def test_planned_is_measured(verifier: HardenedVerifier, name: str) -> None:
    task = foreign(name)
    verdict = verifier.verify(task, write_solutions(task)[0].triton_code)
    assert verdict.correct, verdict.reason
    memory = verdict.memory
    print(f"{name}: {memory}, {verdict.seconds}")
    assert memory["replay_peak"] == pytest.approx(memory["planned_replay"], rel=0.1)
    assert memory["judge_peak"] == pytest.approx(memory["planned_judge"], rel=0.1)
    assert memory["replay_held"] + memory["judge_held"] <= memory["granted"]


def test_a_baseline_that_is_compiled_takes_what_was_granted() -> None:
    """With two graphs kept, and the second baseline's first run."""
    with HardenedVerifier(VerifierConfig(cache=False, precision="tf32", baseline=("eager", "compile"))) as both:
        for name in ("segmentation_confidence", "climate_film_big"):
            task = foreign(name)
            verdicts = [both.verify(task, one.triton_code) for one in write_solutions(task)[:2]]
            for verdict in verdicts:
                assert verdict.correct, verdict.reason
                print(f"{name}: {verdict.memory}, {verdict.seconds}")
                assert verdict.memory["replay_held"] + verdict.memory["judge_held"] <= verdict.memory["granted"]
            assert "compile_baseline" in verdicts[0].seconds
            assert "load_baseline" in verdicts[0].seconds
            assert "compile_baseline" not in verdicts[1].seconds
        assert sum(gpu.restarts() for gpu in both.evaluator.gpus) == 0  # pyright: ignore


def test_many_large_ones_at_once_are_all_right(verifier: HardenedVerifier) -> None:
    tasks = [foreign(name) for name in ("climate_film_big", "lung_decoder_depth_sum", "face_cosine_head", "hires_decoder")]
    pairs = [(task, solution.triton_code) for task in tasks for solution in write_solutions(task)[:5]]
    begun, statuses = time.monotonic(), set[Status]()
    for position, verdict in verifier.verify_many(pairs):
        spent = {name: round(s, 2) for name, s in verdict.seconds.items() if s >= 0.05}
        at = f"{time.monotonic() - begun:.1f} s"
        print(
            f"{at}: {pairs[position][0].id}: {verdict.status} {verdict.reason} {spent}; the GPU: {verifier.doing()}", flush=True
        )
        statuses.add(verdict.status)
    assert statuses == {Status.CORRECT}
    assert sum(gpu.restarts() for gpu in verifier.evaluator.gpus) == 0  # pyright: ignore


def test_a_candidate_larger_than_the_gpu_is_too_large(verifier: HardenedVerifier) -> None:
    task = foreign("one_logit_center")
    source = write_solutions(task)[0].triton_code
    head, signature, body = source.partition("    def forward(self")
    line, _, rest = body.partition("\n")
    waste = "        self.waste = [torch.empty(1 << 35, device='cuda').zero_() for _ in range(4)]\n"
    verdict = verifier.verify(task, f"{head}{signature}{line}\n{waste}{rest}")
    assert verdict.status is Status.TOO_LARGE, verdict.reason
