"""The client of a GPU process: what it answers and raises, and that a death fails the calls under way and no others."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kernrl.errors import InfrastructureError, UsageError
from kernrl.verifier.pool import gpu_client, gpu_process
from kernrl.verifier.pool.gpu_client import GpuClient
from kernrl.verifier.replay.compiled_reference import import_compiler
from kernrl.verifier.rpc.answers import Failed, OutOfMemory
from kernrl.verifier.rpc.processes import resolve


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., GpuClient]]:
    made: list[GpuClient] = []

    def one(**settings: Any) -> GpuClient:
        made.append(GpuClient("3", **settings))
        return made[-1]

    monkeypatch.setattr(gpu_client, "PROCESS", "support.gpu_process_stand_in")
    yield one
    for gpu in made:
        gpu.close()


def ask(gpu: GpuClient, job: Any) -> Any:
    return gpu.run(job, ["eager"], "task")


@pytest.mark.slow
def test_it_answers_as_the_gpu_does(make: Callable[..., GpuClient]) -> None:
    gpu = make()
    assert gpu.gpu_info["device"] == "3"
    assert gpu.noise == "measured"
    assert gpu.twins(2, 0.05) == [0.05, 0.05]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: ask(gpu, f"job {i}"), range(50)))
    assert found == [(f"job {i}", ["eager"], "task") for i in range(50)]
    assert gpu.load() == 0
    with pytest.raises(UsageError, match="as asked"):
        ask(gpu, "usage")
    with pytest.raises(OutOfMemory, match="as asked"):
        ask(gpu, "memory")
    with pytest.raises(InfrastructureError, match=r"^as asked$"):
        ask(gpu, "broken")
    with pytest.raises(Failed, match="ZeroDivisionError: as asked"):
        ask(gpu, "odd")


@pytest.mark.slow
def test_it_is_released_while_calls_wait_for_that(make: Callable[..., GpuClient]) -> None:
    gpu = make()
    with ThreadPoolExecutor(1) as pool:
        with gpu.untimed():
            waiting = pool.submit(ask, gpu, "waits for the release")
            assert ask(gpu, "another")
            assert not waiting.done()
        assert waiting.result(30) is True


@pytest.mark.slow
def test_calls_to_a_process_that_died_fail_and_another_takes_over(make: Callable[..., GpuClient]) -> None:
    gpu = make()
    _ = gpu.noise
    with ThreadPoolExecutor(4) as pool:
        owed = [pool.submit(ask, gpu, "waits") for _ in range(3)]
        with gpu.untimed():
            with pytest.raises(InfrastructureError, match="the GPU process was lost"):
                ask(gpu, "dies")
            for one in owed:
                with pytest.raises(InfrastructureError, match="lost"):
                    one.result(30)
    assert ask(gpu, "after") == ("after", ["eager"], "task")
    assert gpu.twins(1) == [0.0]


@pytest.mark.slow
def test_a_gpu_that_cannot_be_used_says_why(make: Callable[..., GpuClient]) -> None:
    with pytest.raises(InfrastructureError, match="not well"):
        make(broken=True)


@pytest.mark.slow
def test_closing_ends_the_process_and_fails_the_calls_under_way(make: Callable[..., GpuClient]) -> None:
    gpu = make()
    process, failures = gpu.pid, []

    def wait() -> None:
        with pytest.raises(InfrastructureError) as raised:
            ask(gpu, "waits")
        failures.append(str(raised.value))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not gpu.load():
        pass
    gpu.close()
    waiting.join(30)
    assert failures
    assert process
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    with pytest.raises(InfrastructureError, match="closed"):
        ask(gpu, "again")


@pytest.mark.slow
@pytest.mark.parametrize("compilers", [0, 2])
def test_the_process_knows_from_the_start_whether_baselines_are_compiled(
    make: Callable[..., GpuClient], compilers: int
) -> None:
    assert make(compilers=compilers).gpu_info["compiled"] == str(compilers > 0)


def test_inductor_is_imported_ahead_only_where_baselines_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_process, "ForkServer", lambda name, module, settings: settings)
    eager, compiled = (gpu_process.worker_fork_server(compiled=compiled) for compiled in (False, True))
    assert "ahead" not in eager  # pyright: ignore[reportOperatorIssue]
    [name] = compiled["ahead"]  # pyright: ignore[reportIndexIssue]
    assert resolve(name) is import_compiler
