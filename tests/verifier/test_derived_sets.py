"""Tasks that state no input set but the full one: derived sets are judged, and inform without binding."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support import unstated
from support.stand_in_gpu import StandIn

from kernrl.config import VerifierConfig
from kernrl.tasks.task import FULL, InputSet, Task, task_fingerprint
from kernrl.verifier import correctness, funnel
from kernrl.verifier.base.verdict import Stage, Status, Verdict
from kernrl.verifier.explain import account
from kernrl.verifier.judge.draws import ONLY_BIG_SET_REGIMES, ONLY_SET_REGIMES
from kernrl.verifier.pool.derive_input_sets import InputSets
from kernrl.verifier.rpc.worker_client import Client
from kernrl.verifier.verifier import HardenedVerifier

LARGE = Task("large", unstated.task_code(16384, 16384))
"""A GiB of input."""
TINY = Task("tiny", unstated.task_code(16, 64))
SCALED = Task("scaled", unstated.scaled_code(65536, 4096))
"""Its scale is a 64th."""
WRITTEN_OUT = {LARGE.id: unstated.written_out(16384), TINY.id: unstated.written_out(64)}

FIXED = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return 2.0 * x + 1.0


def get_inputs():
    return [torch.randn(int("ROWS"), int("64"))]


def get_init_inputs():
    return []
"""
"""Its sizes are no numbers of the source, so no other set can be derived."""

FLAT = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def flat_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(out_ptr + i, 2.0 * x + 1.0, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        flat_kernel[(triton.cdiv(x.numel(), 256),)](x, out, x.numel(), BLOCK=256)
        return out
"""


def fixed(rows: int) -> Task:
    return Task(f"fixed-{rows}", FIXED.replace("ROWS", str(rows)))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cpu(cache: Path, fork_servers: Callable[[pytest.MonkeyPatch], None]) -> Iterator[HardenedVerifier]:
    with pytest.MonkeyPatch.context() as patch:
        fork_servers(patch)
        with HardenedVerifier(VerifierConfig(device="cpu", cache_dir=cache, workers=2)) as verifier:
            yield verifier


@pytest.fixture(scope="module")
def gpu(cache: Path, fork_servers: Callable[[pytest.MonkeyPatch], None]) -> Iterator[HardenedVerifier]:
    """A verifier with a GPU that finds everything right."""
    with pytest.MonkeyPatch.context() as patch:
        fork_servers(patch)
        patch.setattr(funnel, "visible_gpus", lambda: ["0"])
        patch.setattr(funnel, "GpuClient", StandIn)
        with HardenedVerifier(VerifierConfig(cache_dir=cache / "gpu", workers=2)) as verifier:
            verifier.evaluator.start()
            yield verifier


def set_any_shape(verifier: HardenedVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting, without the seconds that processes of another verifier take to start."""
    monkeypatch.setitem(vars(verifier.evaluator.config), "any_shape", True)


def sets_of(verdict: Verdict) -> set[str]:
    return {record["input_set"] for record in verdict.errors}


# --- what is derived ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_derived_sets_are_kept_by_source(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again = InputSets(cache), InputSets(cache)
    with contextlib.closing(first), contextlib.closing(again):
        completed = first.complete(LARGE)
        assert [s.name for s in completed.input_sets] == ["full", "small", "ragged"]
        assert all(s.derived for s in completed.input_sets[1:])
        assert completed.input_sets[1].constants["features"] in (16, 32), "16 divides it, as it does 16384"
        monkeypatch.setattr("kernrl.verifier.rpc.worker_client.Client.start", lambda _: pytest.fail("something was executed"))
        assert again.complete(Task("other", LARGE.pytorch_code)).input_sets == completed.input_sets


def test_a_stated_set_keeps_others_from_being_derived(cache: Path) -> None:
    stated = Task("stated", LARGE.pytorch_code, input_sets=(InputSet(FULL), InputSet("mine", {"features": 48})))
    with contextlib.closing(InputSets(cache)) as input_sets:
        assert input_sets.complete(stated) is stated


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
@pytest.mark.parametrize("line", ["raise ValueError('no')", "import os; os._exit(7)", "while True: pass"])
def test_a_reference_that_breaks_goes_on_with_the_sets_it_has(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Task("broken", f"{line}\n{LARGE.pytorch_code}")
    with contextlib.closing(InputSets(None)) as input_sets:
        with monkeypatch.context() as patch:
            patch.setattr("kernrl.verifier.pool.derive_input_sets.TIMEOUT_S", 3.0)
            assert input_sets.complete(broken) == broken
        assert len(input_sets.complete(LARGE).input_sets) == 3, "and so do the tasks after it"


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_sources_are_worked_on_side_by_side_and_each_of_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two processes one hangs: the other goes on with what comes, and an end leaves nobody waiting or warned."""
    asked, ask = [], Client.ask
    monkeypatch.setattr(Client, "ask", lambda self, *args: asked.append(args[2]) or ask(self, *args))
    hanging = Task("hanging", f"while True: pass\n{LARGE.pytorch_code}")
    others = [Task(f"t{i}", f"{LARGE.pytorch_code}\n# {i % 2}") for i in range(4)]
    warnings: list[str] = []
    monkeypatch.setattr("kernrl.verifier.pool.derive_input_sets.log.warning", lambda *args: warnings.append(str(args)))
    with ThreadPoolExecutor(6) as threads, contextlib.closing(InputSets(None, processes=2)) as input_sets:
        stuck = threads.submit(input_sets.complete, hanging)
        found = list(threads.map(input_sets.complete, others))
        assert not stuck.done()
        input_sets.close()
        assert stuck.result(timeout=20) == hanging
    assert [len(task.input_sets) for task in found] == [3, 3, 3, 3]
    assert sorted(asked) == sorted([hanging.pytorch_code, others[0].pytorch_code, others[1].pytorch_code])
    assert not warnings


def test_a_derived_set_is_not_a_stated_one_to_the_cache() -> None:
    sets = [(InputSet(FULL), InputSet("small", {"features": 16}, derived=derived)) for derived in (False, True)]
    stated, derived = (Task("task", LARGE.pytorch_code, input_sets=one) for one in sets)
    assert task_fingerprint(stated) != task_fingerprint(derived)


# --- on a CPU -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("task", "sets"), [(LARGE, {"small", "ragged"}), (TINY, {"small", "ragged", "full"})])
def test_a_right_candidate_is_judged_at_every_set_that_is_small(cpu: HardenedVerifier, task: Task, sets: set[str]) -> None:
    verdict = cpu.verify(task, unstated.CANDIDATE)
    assert verdict.correct, verdict.reason
    assert sets_of(verdict) == sets
    assert not verdict.specialised
    assert not verdict.notes


@pytest.mark.slow
@pytest.mark.parametrize("task", [LARGE, TINY])
def test_a_plain_mistake_is_wrong(cpu: HardenedVerifier, task: Task) -> None:
    verdict = cpu.verify(task, unstated.WRONG)
    assert verdict.status is Status.WRONG
    assert f"on the {'small' if task is LARGE else 'full'} shapes" in verdict.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", ["written out", "unmasked", "viewed"])
def test_who_is_made_for_the_tasks_sizes_is_specialised_or_left_to_a_gpu(cpu: HardenedVerifier, name: str) -> None:
    for task, columns in ((TINY, 64), (LARGE, 16384)):
        verdict = cpu.verify(task, unstated.specialised(name, columns))
        if task is TINY:
            assert verdict.correct, verdict.reason
            assert sets_of(verdict) == {"full"}
            assert len(verdict.errors) == 1 + ONLY_SET_REGIMES, "the full set is judged as if there were no other"
            assert "shapes: " in verdict.specialised
        else:
            assert verdict.status is Status.NEEDS_GPU
            assert not verdict.specialised
            assert "shapes: " in verdict.reason
            assert "judge it there" in verdict.reason


@pytest.mark.slow
def test_a_wrong_number_is_no_plain_mistake_where_a_size_is_written_out(cpu: HardenedVerifier) -> None:
    written = unstated.CANDIDATE.replace("tl.sum(total) / columns", "tl.sum(total) / 16384.0")
    assert cpu.verify(LARGE, written).status is Status.NEEDS_GPU
    halved = unstated.CANDIDATE.replace("tl.sum(total) / columns", "tl.sum(total) / columns / 7.0")
    assert cpu.verify(LARGE, halved).status is Status.WRONG


@pytest.mark.slow
def test_a_number_of_the_tasks_own_sizes_is_right_where_it_stays(cpu: HardenedVerifier, cache: Path) -> None:
    verdict = cpu.verify(SCALED, unstated.SCALED.replace("SCALE", "0.015625"))
    assert verdict.correct, verdict.reason
    assert verdict.specialised.startswith("Wrong on the small shapes")
    assert "It is right at small sizes" in verdict.specialised
    assert verdict.plan["sets"] == {"small": {"batch_size": 2}, "ragged": {"batch_size": 3}, "full": {}}, "it says which"
    assert sets_of(verdict) == {"small", "ragged"}
    assert [bool(record["excess"] > 1) for record in verdict.errors] == [False] * len(verdict.errors)
    followed = cpu.verify(SCALED, unstated.SCALED.replace("SCALE", "tl.rsqrt(columns.to(tl.float32))"))
    assert followed.correct, followed.reason
    assert not followed.specialised
    assert "features" in followed.plan["sets"]["small"]


@pytest.mark.slow
def test_another_number_than_the_tasks_is_wrong_wherever_it_stays(cpu: HardenedVerifier) -> None:
    for number in ("0.0156", "0.1767766952966369"):  # the second is right at the small set, where there are 32 features
        verdict = cpu.verify(SCALED, unstated.SCALED.replace("SCALE", number))
        assert verdict.status is Status.WRONG, verdict.reason
        assert "on the small shapes" in verdict.reason


@pytest.mark.slow
def test_any_shape_refuses_a_number_of_the_tasks_own_sizes(cpu: HardenedVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    set_any_shape(cpu, monkeypatch)
    verdict = cpu.verify(SCALED, unstated.SCALED.replace("SCALE", "0.015625"))
    assert verdict.status is Status.WRONG
    assert not verdict.specialised


@pytest.mark.slow
def test_too_slow_where_a_number_stays_is_not_too_slow(cpu: HardenedVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """4,096 steps take the interpreter longer than half a second, and 32 do not; what does not end does so nowhere."""
    monkeypatch.setattr(cpu.evaluator, "config", cpu.evaluator.config.model_copy(update={"candidate_cpu_s": 0.5}))
    monkeypatch.setattr(correctness, "LEAST_INTERPRET_S", 0.5)
    slow = unstated.SCALED.replace("BLOCK=16", "BLOCK=1").replace("SCALE", "0.015625")
    verdict = cpu.verify(SCALED, slow)
    assert verdict.status is Status.NEEDS_GPU
    assert "takes longer than" in verdict.reason
    endless = slow.replace("    tl.store(", "    while tl.sum(total) < float('inf'):\n        total += 0.0\n    tl.store(", 1)
    assert cpu.verify(SCALED, endless).status is Status.TIMEOUT


@pytest.mark.slow
def test_any_shape_refuses_who_is_specialised(cpu: HardenedVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cpu.verify(TINY, WRITTEN_OUT["tiny"]).correct
    set_any_shape(cpu, monkeypatch)
    for task in (TINY, LARGE):
        verdict = cpu.verify(task, WRITTEN_OUT[task.id])
        assert verdict.status is Status.CRASH, "the cache keeps the two settings apart"
        assert verdict.reason.startswith("On small shapes: ") or verdict.reason.startswith("On ragged shapes: ")
        assert cpu.verify(task, unstated.CANDIDATE).correct


@pytest.mark.slow
def test_without_names_for_sizes_the_full_set_alone_is_judged_if_it_is_small(cpu: HardenedVerifier) -> None:
    verdict = cpu.verify(fixed(16), FLAT)
    assert verdict.correct, verdict.reason
    assert sets_of(verdict) == {"full"}
    assert len(verdict.notes) == 1
    assert "edges of tensors" in verdict.notes[0]
    assert cpu.verify(fixed(16), FLAT.replace("+ 1.0", "+ 1.5")).status is Status.WRONG


@pytest.mark.slow
def test_what_is_too_large_is_judged_at_smaller_sizes_where_its_own_are_written_out_as_numbers(cpu: HardenedVerifier) -> None:
    large = Task("numbers", FIXED.replace('int("ROWS"), int("64")', "1 << 20, 64"))
    verdict = cpu.verify(large, FLAT)
    assert verdict.correct, verdict.reason
    assert sets_of(verdict) == {"small", "ragged"}
    unmasked = FLAT.replace(", mask=i < n", "")
    assert not cpu.verify(large, unmasked).correct


@pytest.mark.slow
def test_what_is_too_large_needs_a_gpu_and_is_told_what_to_do(cpu: HardenedVerifier) -> None:
    verdict = cpu.verify(fixed(1 << 20), FLAT)
    assert verdict.status is Status.NEEDS_GPU
    assert "INPUT_SETS" in verdict.reason
    assert verdict.timing is None


@pytest.mark.slow
@pytest.mark.parametrize("whose", ["the reference", "the candidate"])
def test_what_torch_has_for_gpus_alone_is_said(cpu: HardenedVerifier, whose: str) -> None:
    pooled = "nn.functional.avg_pool3d(x.half()[None, None], 1)[0, 0].float()"  # of halves: on a GPU alone
    task, candidate = fixed(16), FLAT
    if whose == "the reference":
        task = Task("pooled", task.pytorch_code.replace("2.0 * x", f"2.0 * {pooled}"))
    else:
        candidate = FLAT.replace("out = torch.empty_like(x)", f"x = {pooled}\n        out = torch.empty_like(x)")
    verdict = cpu.verify(task, candidate)
    assert verdict.status is Status.NEEDS_GPU, verdict.reason
    assert "not implemented for 'Half' on a CPU" in verdict.reason


@pytest.mark.slow
def test_a_kernel_that_does_not_end_at_its_only_set_is_not_called_too_slow(
    cpu: HardenedVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu.evaluator, "config", cpu.evaluator.config.model_copy(update={"candidate_cpu_s": 3.0}))
    endless = FLAT.replace("    tl.store(", "    while tl.sum(x) < float('inf'):\n        x += 0.0\n    tl.store(", 1)
    assert cpu.verify(fixed(16), endless).status is Status.NEEDS_GPU


# --- on a GPU -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_right_candidate_is_judged_at_the_ragged_set_before_the_gpu(gpu: HardenedVerifier) -> None:
    verdict, jobs = gpu.verify(LARGE, unstated.CANDIDATE), standing_in(gpu).jobs
    assert verdict.correct, verdict.reason
    assert sets_of(verdict) == {"ragged", "full"}
    assert set(jobs[LARGE.id].plans) == {"full"}
    assert not jobs[LARGE.id].decoys


@pytest.mark.slow
@pytest.mark.parametrize("name", ["written out", "unmasked", "viewed"])
def test_who_fails_at_derived_sizes_is_judged_at_full_size(gpu: HardenedVerifier, name: str) -> None:
    verdict, jobs = gpu.verify(LARGE, unstated.specialised(name, 16384)), standing_in(gpu).jobs
    assert verdict.correct, verdict.reason
    assert "shapes: " in verdict.specialised
    job = jobs[LARGE.id]
    assert set(job.plans) == {"full"}
    assert job.decoys, "nothing was learned at the other set"
    assert len(job.draws) == 1 + ONLY_BIG_SET_REGIMES, "those of a task with one set"


@pytest.mark.slow
def test_a_gpu_judges_a_number_of_the_tasks_own_sizes_at_full_size(gpu: HardenedVerifier) -> None:
    verdict, jobs = gpu.verify(SCALED, unstated.SCALED.replace("SCALE", "0.015625")), standing_in(gpu).jobs
    assert verdict.correct, verdict.reason
    assert "It is right at small sizes" not in verdict.specialised
    assert set(jobs[SCALED.id].plans) == {"full"}


@pytest.mark.slow
def test_any_shape_refuses_before_the_gpu(gpu: HardenedVerifier, monkeypatch: pytest.MonkeyPatch) -> None:
    set_any_shape(gpu, monkeypatch)
    standing_in(gpu).jobs.clear()
    verdict = gpu.verify(LARGE, WRITTEN_OUT["large"])
    assert verdict.status is Status.CRASH
    assert verdict.reason.startswith("On ragged shapes: ")
    assert not standing_in(gpu).jobs


@pytest.mark.slow
def test_a_stated_ragged_set_binds(gpu: HardenedVerifier) -> None:
    stated = Task(
        "stated", LARGE.pytorch_code, input_sets=(InputSet(FULL), InputSet("ragged", {"features": 37, "batch_size": 3}))
    )
    verdict = gpu.verify(stated, WRITTEN_OUT["large"])
    assert verdict.status is Status.CRASH
    assert stated.id not in standing_in(gpu).jobs


def standing_in(verifier: HardenedVerifier) -> StandIn:
    gpu: Any = verifier.evaluator.gpus[0]
    return gpu


# --- how it is shown ----------------------------------------------------------------------------------------------


def test_what_needs_a_gpu_is_not_shown_as_a_failure() -> None:
    from rich.console import Console

    def shown(**fields: Any) -> str:
        console = Console(width=120, file=None)
        rest: dict[str, Any] = {"reason": "", "task_id": "t", "candidate_sha": "0", "precision": "fp32"} | fields
        with console.capture() as capture:
            console.print(account(Verdict(**rest)))
        return capture.get()

    unknown = shown(status=Status.NEEDS_GPU, stage=Stage.CORRECTNESS, reason="Too large.")
    assert "✗" not in unknown
    assert "?  correctness" in unknown
    assert "✗  correctness" in shown(status=Status.WRONG, stage=Stage.CORRECTNESS)
    special = shown(status=Status.CORRECT, stage=Stage.TIMING, specialised="On small shapes: no.", notes=["No tails."])
    assert "(specialised)" in special
    assert "On small shapes: no." in special
    assert "No tails." in special
