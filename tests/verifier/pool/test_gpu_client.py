"""A GPU conducted in another process: what it answers and raises, and that its death costs no more than what it owed."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support import TESTS

from kernrl.errors import InfrastructureError, UsageError
from kernrl.verifier.pool import gpu_client
from kernrl.verifier.pool.gpu_client import ConductedGpu
from kernrl.verifier.rpc.process import OutOfMemory

STAND_IN = TESTS / "support" / "gpu_process_stand_in.py"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ConductedGpu]]:
    made: list[ConductedGpu] = []

    def started(theirs: socket.socket) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(STAND_IN), str(theirs.fileno())], pass_fds=[theirs.fileno()])

    def one(**settings: Any) -> ConductedGpu:
        made.append(ConductedGpu("3", **settings))
        return made[-1]

    monkeypatch.setattr(gpu_client, "started", started)
    yield one
    for gpu in made:
        gpu.close()


def ask(gpu: ConductedGpu, job: Any) -> Any:
    return gpu.run(job, ["eager"], "task")


def test_it_answers_as_the_gpu_does(make: Callable[..., ConductedGpu]) -> None:
    gpu = make()
    assert gpu.facts["device"] == "3"
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
    with pytest.raises(RuntimeError, match="ZeroDivisionError: as asked"):
        ask(gpu, "odd")


def test_it_is_let_go_while_others_wait_for_that(make: Callable[..., ConductedGpu]) -> None:
    gpu = make()
    with ThreadPoolExecutor(1) as pool:
        with gpu.untimed():
            waiting = pool.submit(ask, gpu, "waits for who holds it")
            assert ask(gpu, "another")
            assert not waiting.done()
        assert waiting.result(30) is True


def test_what_a_dead_one_owed_has_failed_and_another_takes_over(make: Callable[..., ConductedGpu]) -> None:
    gpu = make()
    _ = gpu.noise
    with ThreadPoolExecutor(4) as pool:
        owed = [pool.submit(ask, gpu, "waits") for _ in range(3)]
        with gpu.untimed():
            with pytest.raises(InfrastructureError, match="conductor"):
                ask(gpu, "dies")
            for one in owed:
                with pytest.raises(InfrastructureError, match="lost"):
                    one.result(30)
    assert ask(gpu, "after") == ("after", ["eager"], "task")
    assert gpu.twins(1) == [0.0]


def test_a_gpu_that_cannot_be_used_says_why(make: Callable[..., ConductedGpu]) -> None:
    with pytest.raises(InfrastructureError, match="not well"):
        make(broken=True)


def test_closing_ends_the_process_and_whoever_waits_for_it(make: Callable[..., ConductedGpu]) -> None:
    gpu = make()
    process, failures = gpu._process, []

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
    assert process.returncode is not None
    with pytest.raises(InfrastructureError, match="closed"):
        ask(gpu, "again")
