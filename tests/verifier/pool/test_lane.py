"""A lane's protocol, with processes that need no GPU: rejections, faults, hangs and kills, and the candidates after them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from support import TESTS

from kernrl.errors import InfrastructureError, UsageError
from kernrl.verifier.base.verdict import Stage, Status
from kernrl.verifier.judge.judge_server import JudgeServer
from kernrl.verifier.judge.memory_estimate import SetMemory
from kernrl.verifier.judge.truth.slices import Slices
from kernrl.verifier.pool.backend import Outcome
from kernrl.verifier.pool.gpu import Gpu
from kernrl.verifier.pool.lane import Lane
from kernrl.verifier.pool.task_preparers import TaskPreparers
from kernrl.verifier.rpc.worker_client import Client

STAND_IN = TESTS / "support" / "lane_stand_in.py"


class FakeForkServer:
    """Starts a stand-in where the real one forks a replay or judge process."""

    ROLES: ClassVar = {
        "kernrl.verifier.replay.replay_server:ReplayServer": "replay",
        "kernrl.verifier.judge.judge_server:JudgeServer": "judge",
        "kernrl.verifier.replay.task_preparer:TaskPreparer": "preparer",
    }

    def __init__(self, log: Path) -> None:
        self.log, self.env = log, {}
        log.touch()
        self.started: list[subprocess.Popen[bytes]] = []

    def fork(self, request: dict[str, Any], *descriptors: int) -> socket.socket:
        assert request["env"] == {"CUDA_VISIBLE_DEVICES": "0"} | self.env.get(self.ROLES[request["server"]], {})
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-S", str(STAND_IN), str(theirs.fileno()), self.ROLES[request["server"]], str(self.log)]
        self.started.append(subprocess.Popen(command, pass_fds=[theirs.fileno()]))
        theirs.close()
        return ours

    @property
    def of_lanes(self) -> list[subprocess.Popen[bytes]]:
        """Those started for lanes."""
        return [process for process in self.started if "preparer" not in process.args]  # pyright: ignore

    def let_compilers_end(self) -> None:
        """Those that compile, or stay in a lane, until they may end."""
        Path(f"{self.log}.may_end").touch()

    def events(self, role: str) -> list[str]:
        rows = (line.split(" ", 2) for line in self.log.read_text().splitlines())
        return [event for who, _, event in rows if who == role]


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[FakeForkServer]:
    made = FakeForkServer(tmp_path / "log")
    yield made
    for process in made.started:
        process.kill()
        process.wait()


@pytest.fixture
def gpu(forks: FakeForkServer) -> Iterator[Gpu]:
    made = Gpu(forks, "0", lanes=2, cache_dir=None, timeout_s=2.0, compilers=2)  # pyright: ignore[reportArgumentType]
    yield made
    made.close()


def job(manner: str, sets: Sequence[str] = ("small", "full"), held_bytes: int = 1 << 20) -> Any:
    """A candidate of a draw at each input set, whose stand-ins behave in that manner."""
    draws = [SimpleNamespace(input_set=name, regime="normal") for name in sets]
    task = SimpleNamespace(id=manner, pytorch_code="")
    held = {"small": 1 << 20, "full": held_bytes}
    return SimpleNamespace(
        task=task, precision="fp32", draws=draws, all_draws=draws, plans={"small": 0, "full": 1}, kernels={},
        held_bytes=held, temporary_bytes=held, library_bytes=held, output_bytes=dict.fromkeys(held, 1024), spot_checks=5,
    )  # fmt: skip


def large(manner: str, held_bytes: int = 6 << 30) -> Any:
    """A candidate that is planned with 72 GiB, where the GPU has 90."""
    one = job(manner, held_bytes=held_bytes)
    one.temporary_bytes = one.library_bytes = dict.fromkeys(one.held_bytes, 0)
    return one


def run(gpu: Gpu, manner: str, key: str = "task") -> Outcome:
    return gpu.run(job(manner), ["eager"], key)


def assert_right(outcome: Outcome) -> None:
    assert outcome.rejection is None, outcome.rejection
    assert outcome.stage is Stage.TIMING
    assert outcome.measured is not None
    assert len(outcome.errors) == 3, "two phases, and the timed calls"


@pytest.mark.slow
def test_a_right_candidate_passes_and_what_was_prepared_is_kept(gpu: Gpu, forks: FakeForkServer) -> None:
    for _ in range(3):
        assert_right(run(gpu, "right"))
    assert forks.events("judge").count("begins attach") == 1
    assert forks.events("replay").count("begins prepare") == 1
    assert len(forks.of_lanes) == 2, "a task's candidates stay in one lane, and the other has not been needed"


@pytest.mark.slow
def test_baselines_that_had_to_go_are_captured_again_before_the_gpu_is_taken(gpu: Gpu, forks: FakeForkServer) -> None:
    """A candidate that may take less memory than its task's last one makes replay drop what it has kept."""
    for _ in range(2):
        assert_right(gpu.run(job("holds more than this candidate may"), ["eager", "compile"], "task"))
    assert forks.events("replay").count("begins prepare") == 2 * 2, "without and with compiling"
    assert gpu.restarts == 0


@pytest.mark.slow
def test_nothing_of_a_rejected_candidate_is_left_at_work(gpu: Gpu, forks: FakeForkServer) -> None:
    outcome = run(gpu, "wrong")
    events = forks.events("replay")
    assert outcome.rejection is not None
    assert (outcome.rejection.status, outcome.stage) == (Status.WRONG, Stage.CORRECTNESS)
    assert events.count("begins check") == 2, "the full set was asked before the small one had been judged"
    assert events.count("ends check") == 2, "and it has ended before the GPU is unlocked"
    assert_right(run(gpu, "right"))


@pytest.mark.slow
def test_an_idle_kernel_is_a_decoy_unless_the_reference_has_an_idle_op(gpu: Gpu, forks: FakeForkServer) -> None:
    outcome = run(gpu, "an idle kernel")
    assert outcome.rejection is not None
    assert (outcome.rejection.status, outcome.stage) == (Status.DECOY, Stage.CORRECTNESS)
    assert_right(run(gpu, "an idle kernel for an idle op"))
    assert_right(run(gpu, "right"))
    assert forks.events("judge").count("begins has_idle_op") == 2, "nobody else is asked about"


@pytest.mark.slow
def test_baselines_are_captured_while_the_last_phase_is_judged(gpu: Gpu, forks: FakeForkServer) -> None:
    outcome = gpu.run(job("wrong", ["full"]), ["eager"], "task")
    assert (outcome.stage, outcome.rejection and outcome.rejection.status) == (Stage.CORRECTNESS, Status.WRONG)
    events = [event for event in forks.events("replay") if not event.endswith("warm_up")]  # which may come after all others
    assert events[-2:] == ["begins prepare", "ends prepare"], "which has ended before the GPU is unlocked"
    assert_right(run(gpu, "right"))


@pytest.mark.slow
def test_a_candidate_does_not_pay_for_its_tasks_baselines(gpu: Gpu) -> None:
    assert_right(run(gpu, "has a baseline that compiles for long"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("manner", "said"),
    [
        ("has a baseline that compiles for long", "the baselines are not ready after 1 s"),
        ("has a baseline that cannot be made", "the baselines cannot be made: no such thing"),
    ],
)
def test_baselines_that_are_not_made_are_no_fault_of_the_candidate(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, manner: str, said: str
) -> None:
    assert_right(run(gpu, "right"))
    monkeypatch.setattr("kernrl.verifier.pool.lane.TRUSTED_TIMEOUT_S", 1.0)
    with pytest.raises(InfrastructureError, match=said):
        run(gpu, manner)
    assert_right(run(gpu, "right"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("manner", "status", "restarts"),
    [
        ("too big", Status.CRASH, False),
        ("faults", Status.CRASH, True),
        ("hangs", Status.TIMEOUT, True),
        ("slow in every step", Status.TIMEOUT, True),
        ("hangs and keeps the judge", Status.TIMEOUT, True),
        ("overruns", Status.WRONG, True),
    ],
)
def test_trouble_is_the_candidates_alone(
    gpu: Gpu, forks: FakeForkServer, manner: str, status: Status, *, restarts: bool
) -> None:
    assert_right(run(gpu, "right"))
    outcome = run(gpu, manner)
    assert outcome.rejection is not None
    assert outcome.rejection.status is status
    before = forks.of_lanes[0]
    assert (before.poll() is not None) == restarts, "it is gone by now, and so is its work"
    assert_right(run(gpu, "right"))
    assert len(forks.of_lanes) == 2 + restarts
    assert forks.events("judge").count("begins attach") == 1 + restarts


@pytest.mark.slow
def test_who_lacks_memory_runs_again_alone_and_nobody_else_does(forks: FakeForkServer) -> None:
    """One of six lanes runs out, while the others are at work and more candidates wait."""
    gpu = Gpu(forks, "0", lanes=6, cache_dir=None, timeout_s=5.0)  # pyright: ignore[reportArgumentType]
    try:
        with ThreadPoolExecutor(16) as pool:
            others = [pool.submit(run, gpu, "right", f"task {i % 6}") for i in range(12)]
            lacks = pool.submit(run, gpu, "takes more than planned", "a big task")
            assert_right(lacks.result())
            for other in others:
                assert_right(other.result())
        events = forks.events("replay")
        assert events.count("begins begin") == 12 + 2
        assert gpu.restarts == 0
        assert len(forks.of_lanes) <= 12, "no process was replaced"
        assert_right(run(gpu, "right"))
    finally:
        gpu.close()


@pytest.mark.slow
def test_a_task_that_took_more_than_planned_is_planned_with_what_it_took(gpu: Gpu, forks: FakeForkServer) -> None:
    took = gpu.run(large("takes more than planned, 90 GiB in replay"), ["eager"], "task").memory
    assert (took["replay_held"], took["judge_held"]) == (90 << 30, 2 << 30)
    after = gpu.run(large("right"), ["eager"], "task").memory
    another = gpu.run(large("right"), ["eager"], "another").memory
    assert another["granted"] == another["planned_replay"] + another["planned_judge"]
    assert another["planned_replay"] < 90 << 30
    assert after["granted"] == (90 << 30) + another["planned_judge"]


@pytest.mark.slow
def test_a_group_that_takes_more_than_its_plan_runs_out_once(
    gpu: Gpu, forks: FakeForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it waits already when the first runs out. Nothing is left over from which it could have had more."""
    fits = SetMemory(*[5 << 27] * 10)
    monkeypatch.setattr(gpu.preparers, "memory", lambda job, key: dict.fromkeys(job.plans, fits))
    monkeypatch.setattr(gpu, "even_share", 0)
    with ThreadPoolExecutor(4) as pool:
        group = [pool.submit(gpu.run, large("takes 6 GiB", held_bytes=1 << 30), ["eager"], "task") for _ in range(4)]
        for one in group:
            assert_right(one.result())
    events = forks.events("replay")
    assert events.count("begins begin") == 1 + 4
    assert "begins give_back" in events
    assert gpu.memory.held_bytes() < gpu.memory.total_bytes, "nobody had to run alone"


@pytest.mark.slow
def test_the_judge_is_told_in_which_slices_it_is_planned_to_work(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    slices, told = Slices(64, 8, (0,), (0,)), list[Any]()
    fits = replace(SetMemory(*[5 << 27] * 10), slices=slices)
    monkeypatch.setattr(gpu.preparers, "memory", lambda job, key: dict.fromkeys(job.plans, fits))
    send = Client.send
    monkeypatch.setattr(Client, "send", lambda self, *asked: (told.append(asked), send(self, *asked))[1])
    assert_right(gpu.run(large("right", held_bytes=1 << 30), ["eager"], "task"))
    [prepare] = [asked for asked in told if asked[0] is JudgeServer.prepare]
    assert prepare[-1] == {"small": slices, "full": slices}


@pytest.mark.slow
def test_what_is_free_is_shared_evenly(gpu: Gpu, forks: FakeForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fits = SetMemory(*[5 << 27] * 10)
    monkeypatch.setattr(gpu.preparers, "memory", lambda job, key: dict.fromkeys(job.plans, fits))
    outcome = gpu.run(large("takes 6 GiB", held_bytes=1 << 30), ["eager"], "task")
    assert_right(outcome)
    assert forks.events("replay").count("begins begin") == 1
    assert outcome.memory["granted"] == pytest.approx(gpu.memory.total_bytes / 2)


@pytest.mark.slow
def test_a_process_that_dies_of_full_memory_is_replaced_and_counted(gpu: Gpu, forks: FakeForkServer) -> None:
    assert_right(run(gpu, "right"))
    assert_right(run(gpu, "an engine is missing later"))
    assert gpu.restarts == 1
    assert_right(run(gpu, "right"))
    assert gpu.memory.held_bytes() <= gpu.memory.total_bytes


@pytest.mark.slow
def test_who_finds_no_memory_even_alone_is_too_large(gpu: Gpu) -> None:
    rejection = run(gpu, "never finds memory").rejection
    assert rejection is not None
    assert rejection.status is Status.TOO_LARGE
    assert "tried to allocate too much" in rejection.reason
    assert_right(run(gpu, "right"))


@pytest.mark.slow
def test_who_finds_no_memory_beside_another_program_is_not_judged(gpu: Gpu, forks: FakeForkServer) -> None:
    busy = forks.log.with_name("log.busy")
    busy.touch()
    with pytest.raises(InfrastructureError, match=r"other programs use .* only 10\.0 GiB are free"):
        run(gpu, "never finds memory")
    busy.unlink()
    assert_right(run(gpu, "right"))


@pytest.mark.slow
def test_what_a_library_says_where_memory_is_short_is_no_crash(gpu: Gpu, forks: FakeForkServer) -> None:
    assert_right(run(gpu, "an engine is missing"))
    assert_right(run(gpu, "right"))


@pytest.mark.slow
def test_a_candidate_larger_than_the_gpu_is_refused_before_it_runs(gpu: Gpu, forks: FakeForkServer) -> None:
    one = job("right", held_bytes=5 << 30)
    one.temporary_bytes = {"small": 0, "full": 200 << 30}
    rejection = gpu.run(one, ["eager"], "task").rejection
    assert rejection is not None
    assert rejection.status is Status.TOO_LARGE
    assert re.search(r"200\.0 GiB of it for its own buffers, and 90\.7 GiB are there", rejection.reason)
    assert "begins begin" not in forks.events("replay")
    assert_right(run(gpu, "right"))


@pytest.mark.slow
def test_a_task_larger_than_the_gpu_is_refused_by_name(
    gpu: Gpu, forks: FakeForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = SetMemory(*[60 << 30] * 11)
    monkeypatch.setattr(TaskPreparers, "memory", lambda self, job, key: dict.fromkeys(job.plans, sizes))
    with pytest.raises(UsageError, match=r"^huge: judging any candidate takes \d+\.\d GiB, and the GPU has 90\.7 GiB for it"):
        gpu.run(job("huge", held_bytes=10 << 30), ["eager"], "task")
    assert "begins begin" not in forks.events("replay")
    monkeypatch.undo()
    assert_right(run(gpu, "right"))


@pytest.mark.slow
def test_large_candidates_take_turns(gpu: Gpu, forks: FakeForkServer) -> None:
    """Two of 72 GiB do not fit into 90 GiB at once, in two lanes."""
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(gpu.run, large("right"), ["eager"], f"task {i}") for i in range(2)]
        outcomes = [one.result() for one in asked]
    for outcome in outcomes:
        assert_right(outcome)
        assert outcome.memory["planned"] == outcome.memory["planned_replay"] + outcome.memory["planned_judge"]
        assert outcome.memory["replay_peak"] == outcome.memory["judge_peak"] == 1 << 30
        assert outcome.seconds["replay: draw"] == outcome.seconds["judge: draw"] == 0.5
    events = forks.events("replay")
    ran = [event for event in events if event in ("begins begin", "ends spot_checked", "ends give_back")]
    assert ran == ["begins begin", "ends spot_checked", "ends give_back", *ran[:2]], "the idle lane gave back in between"


@pytest.mark.slow
def test_a_large_group_keeps_its_lane_while_others_wait_for_its_memory(gpu: Gpu, forks: FakeForkServer) -> None:
    """Two groups of four, which do not fit at once: what was made for the first serves all of it."""
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(gpu.run, large("right"), ["eager"], f"task {i % 2}") for i in range(8)]
        for one in asked:
            assert_right(one.result())
    events = forks.events("replay")
    assert events.count("begins prepare") == 2, "the baselines of each task were captured once"
    assert events.count("begins give_back") == 1
    assert gpu.restarts == 0


@pytest.mark.slow
def test_baselines_are_compiled_into_the_cache_folder(forks: FakeForkServer, tmp_path: Path) -> None:
    forks.env["replay"] = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TORCHINDUCTOR_FX_GRAPH_CACHE": "1"}
    forks.env["preparer"] = forks.env["replay"]
    made = Gpu(forks, "0", lanes=1, cache_dir=tmp_path, timeout_s=2.0, compilers=1)  # pyright: ignore[reportArgumentType]
    try:
        assert_right(made.run(job("right"), ["eager", "compile"], "task"))
        assert "ends compile" in forks.events("preparer")
    finally:
        made.close()


@pytest.mark.slow
def test_killed_processes_are_replaced(gpu: Gpu, forks: FakeForkServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: run(gpu, "right", f"task {i % 2}"), range(8)))
    for process in forks.started:
        process.kill()
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda i: run(gpu, "right", f"task {i % 2}"), range(8)))
    for outcome in outcomes:
        assert_right(outcome)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["replay", "judge"])
def test_a_process_killed_at_work_is_replaced(gpu: Gpu, forks: FakeForkServer, which: str) -> None:
    assert_right(run(gpu, "right"))
    [lane] = gpu.scheduler.workers_of("task")
    victim: Client[Any] = getattr(lane, which)
    timer = threading.Timer(0.1, os.kill, (victim.pid, signal.SIGKILL))
    timer.start()
    assert_right(run(gpu, "right"))
    timer.join()
    assert_right(run(gpu, "right"))


@pytest.mark.slow
def test_a_judge_that_dies_again_is_broken_machinery(gpu: Gpu) -> None:
    with pytest.raises(InfrastructureError, match="judge"):
        run(gpu, "judge dies")
    assert_right(run(gpu, "right"))


@pytest.mark.slow
def test_a_process_that_is_lost_after_the_last_call_is_broken_machinery(gpu: Gpu) -> None:
    with pytest.raises(InfrastructureError, match="a lane cannot say what a candidate took: an illegal memory access"):
        gpu.run(large("is lost after its last call"), ["eager"], "task")
    assert_right(run(gpu, "right"))
    assert gpu.memory.held_bytes() <= gpu.least_bytes


@pytest.mark.slow
def test_a_baseline_is_compiled_once_while_no_lane_waits_for_it(gpu: Gpu, forks: FakeForkServer) -> None:
    """A lane is at work on one task, without waiting, while the other's baseline is compiled for all its candidates."""
    compiles = job("compiles until it may end")
    with ThreadPoolExecutor(6) as pool:
        slow = [pool.submit(gpu.run, compiles, ["eager", "compile"], "compiled") for _ in range(3)]
        for one in [pool.submit(gpu.run, job("right"), ["eager"], "eager") for _ in range(2)]:
            assert_right(one.result())
        assert gpu.memory.held_bytes() <= gpu.least_bytes, "nobody holds memory meanwhile"
        forks.let_compilers_end()
        outcomes = [one.result() for one in slow]
        for outcome in outcomes:
            assert_right(outcome)
    assert sum("compile_baseline" in outcome.seconds for outcome in outcomes) == 1
    assert_right(gpu.run(compiles, ["eager", "compile"], "compiled"))
    assert forks.events("preparer").count("begins compile") == 1
    assert forks.events("replay").count("begins compile") == 1, "it was loaded in one lane"


@pytest.mark.slow
def test_lanes_import_inductor_while_the_first_baseline_is_compiled(gpu: Gpu, forks: FakeForkServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(gpu.run, job("compiles until it may end"), ["eager", "compile"], "task")
        while "ends warm_up" not in forks.events("replay"):
            time.sleep(0.02)
        assert "begins begin" not in forks.events("replay")
        forks.let_compilers_end()
        assert_right(outcome.result())


def test_one_thread_at_a_time_asks_a_lane_that_has_no_candidate(forks: FakeForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes ready in one thread, while the thread of another lane wants its memory."""
    lane = Lane(forks, "0", share=False, redraw_parameters=True, timeout_s=5.0, memory_share=0.1, env={})  # pyright: ignore[reportArgumentType]
    ask, alone = lane.replay.ask, []

    def noted(method: Any, *arguments: Any) -> Any:
        alone.append((method.__name__, lane.asking.locked()))
        return ask(method, *arguments)

    monkeypatch.setattr(lane.replay, "ask", noted)
    lane.warm_up()
    lane.give_back()
    assert alone == [("warm_up", True), ("give_back", True)]
    lane.close()


@pytest.mark.slow
def test_lanes_make_ready_for_compiled_baselines_beside_candidates_that_need_them(gpu: Gpu, forks: FakeForkServer) -> None:
    both = ["eager", "compile"]
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(gpu.run, job("stays in its lane until it may end"), both, "task")]
        try:
            while "begins prepare" not in forks.events("replay"):
                time.sleep(0.02)
            asked.append(pool.submit(gpu.run, job("right"), both, "another"))  # for which the other lane starts
            for _ in range(1500):
                if forks.events("replay").count("ends warm_up") == 2:
                    break
                time.sleep(0.02)
            assert forks.events("replay").count("ends warm_up") == 2, "one replay process in each lane"
        finally:
            forks.let_compilers_end()
        for one in asked:
            assert_right(one.result())


@pytest.mark.slow
def test_a_first_candidate_without_a_compiled_baseline_does_not_wait_for_inductor(
    forks: FakeForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPORT_S", "60")
    gpu = Gpu(forks, "0", lanes=2, cache_dir=None, timeout_s=2.0, compilers=1)  # pyright: ignore[reportArgumentType]
    with ThreadPoolExecutor(2) as pool:  # two tasks, so that both lanes start
        for outcome in pool.map(lambda key: run(gpu, "right", key), ("task", "another")):
            assert_right(outcome)
    gpu.close()
    before = [*forks.events("replay"), "begins warm_up"]  # it may come after them
    assert before[: before.index("begins warm_up")].count("ends time_candidate") == 2


@pytest.mark.slow
def test_a_compiler_that_dies_leaves_its_work_to_the_lane(gpu: Gpu, forks: FakeForkServer) -> None:
    assert_right(gpu.run(job("has a compiler that dies"), ["eager", "compile"], "task"))
    assert "begins compile" in forks.events("preparer")
    assert "ends compile" not in forks.events("preparer")
    assert "ends compile" in forks.events("replay")
    assert_right(gpu.run(job("right"), ["eager", "compile"], "another"))
    assert "ends compile" in forks.events("preparer")
    assert gpu.restarts == 0


@pytest.mark.slow
def test_a_compiler_killed_at_work_leaves_its_work_to_the_lane(gpu: Gpu, forks: FakeForkServer) -> None:
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(gpu.run, job("has a slow compiler"), ["eager", "compile"], "task") for _ in range(3)]
        while "begins compile" not in forks.events("preparer"):
            time.sleep(0.02)
        for compiler in set(forks.started) - set(forks.of_lanes):
            compiler.kill()
        for one in asked:
            assert_right(one.result())
    assert "ends compile" not in forks.events("preparer")
    assert forks.events("replay").count("ends compile") == 1


@pytest.mark.slow
def test_a_rehearsal_that_is_killed_is_made_again(gpu: Gpu, forks: FakeForkServer) -> None:
    assert_right(gpu.run(large("has a rehearsal that dies"), ["eager"], "task"))
    assert forks.events("preparer").count("begins memory") == 2


@pytest.mark.slow
def test_what_a_gpu_is_at_is_said(gpu: Gpu) -> None:
    """Of two large candidates, one compiles for long, and then waits for the other's memory."""
    assert gpu.doing() == ""
    heard: set[str] = set()
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(gpu.run, large("has a baseline that compiles for long"), ["eager"], "other")
        slow = pool.submit(gpu.run, large("has a slow compiler"), ["eager", "compile"], "slow")
        while not slow.done():
            heard |= set(gpu.doing().split(", "))
            time.sleep(0.01)
        assert_right(slow.result())
        assert_right(other.result())
    assert gpu.doing() == ""
    assert {"compiling a baseline of has a slow compiler", "loading a baseline of has a slow compiler"} <= heard
    assert "waiting for memory for has a slow compiler" in heard
