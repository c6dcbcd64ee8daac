"""Trusted workers and their fork server: answers, time limits and deaths, and who ends with whom."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.work_ahead import Heir
from support.worker_stand_in import Worker

from kernrl.errors import InfrastructureError, UsageError
from kernrl.verifier.rpc.answers import Died, Failed, OutOfMemory, TimedOut
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.frames import ObjectChannel
from kernrl.verifier.rpc.worker import serve
from kernrl.verifier.rpc.worker_client import Client

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("new_processes")]  # which take seconds to start


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    made = ForkServer("the fork server", "kernrl.verifier.rpc.worker", {"modules": ["support.worker_stand_in"]})
    yield made
    made.close()


@pytest.fixture
def worker(forks: ForkServer) -> Iterator[Client[Worker]]:
    made = Client(forks, Worker, {"word": "hello"}, name="stand-in", device="7")
    yield made
    made.kill()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def comes(true: Callable[[], bool]) -> bool:
    """Whether it comes true in some seconds."""
    for _ in range(200):
        if true():
            return True
        time.sleep(0.05)
    return False


def test_a_worker_answers_in_order_and_is_a_child_of_the_fork_server(worker: Client[Worker], forks: ForkServer) -> None:
    assert worker.ask(Worker.greet, 60, "world") == ("hello world", worker.pid, "7")
    assert parent(worker.pid) == forks.pid
    for i in range(5):
        worker.send(Worker.greet, str(i))
    assert [worker.receive(10)[0] for _ in range(5)] == [f"hello {i}" for i in range(5)]
    large = "x" * (70 << 20)  # more than an untrusted frame may hold
    assert worker.ask(Worker.greet, 60, large)[0] == f"hello {large}"


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        ("usage", UsageError, "as asked"),
        ("memory", OutOfMemory, "no memory left: as asked"),
        ("broken", InfrastructureError, "as asked"),
        ("odd", Failed, "ZeroDivisionError: as asked"),
    ],
)
def test_errors_are_told_apart_and_the_worker_goes_on(
    worker: Client[Worker], error: str, raised: type[Exception], text: str
) -> None:
    worker.start()
    before = worker.pid
    with pytest.raises(raised, match=text) as caught:
        worker.ask(Worker.fail, 30, error)
    assert type(caught.value) is raised
    assert worker.ask(Worker.greet, 30, "again")[1] == before


def test_a_worker_beyond_use_is_replaced(worker: Client[Worker]) -> None:
    worker.start()
    before = worker.pid
    with pytest.raises(Died, match="ValueError: it is broken now"):
        worker.ask(Worker.spoil, 30)
    assert not worker.running
    assert gone(before)
    assert worker.ask(Worker.greet, 30, "again")[1] != before
    assert worker.starts == 2


def test_a_worker_beyond_use_runs_no_destructors(tmp_path: Path) -> None:
    """Those of a faulted GPU's events write a warning each to the user's terminal."""
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        try:
            serve("support.worker_stand_in:Worker", {"word": "hello"}, ObjectChannel(theirs))
        finally:
            os._exit(0)
    channel = ObjectChannel(ours)
    assert channel.recv()[0] == "ok"
    channel.send(("spoil", (str(tmp_path / "last words"),)))
    assert channel.recv()[0] == "dead"
    os.waitpid(pid, 0)
    assert not (tmp_path / "last words").exists()


def test_a_worker_that_hangs_is_killed_at_its_limit(worker: Client[Worker]) -> None:
    worker.start()
    before = worker.pid
    with pytest.raises(TimedOut, match=r"no answer within 0\.2 s"):
        worker.ask(Worker.hang, 0.2)
    assert gone(before)
    assert worker.ask(Worker.greet, 30, "again")[0] == "hello again"


def test_a_worker_killed_by_somebody_else_is_broken_machinery(worker: Client[Worker]) -> None:
    worker.send(Worker.hang)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="stand-in process was killed"):
        worker.receive(30)
    assert worker.ready(0), "nothing more can come"
    assert worker.ask(Worker.greet, 30, "again")[0] == "hello again"


def test_drained_answers_are_not_mistaken_for_later_ones(worker: Client[Worker]) -> None:
    worker.send(Worker.greet, "dropped")
    worker.send(Worker.fail, "odd")
    worker.drain(30)
    assert worker.ask(Worker.greet, 30, "wanted")[0] == "hello wanted"


def test_a_worker_that_cannot_be_made_says_why(forks: ForkServer) -> None:
    broken = Client(forks, Worker, {"words": "unknown"}, name="stand-in")
    with pytest.raises(InfrastructureError, match=r"the stand-in process cannot start: TypeError.*words"):
        broken.start()


@pytest.mark.slow
def test_workers_die_with_their_fork_server_which_is_replaced() -> None:
    forks = ForkServer("the fork server", "kernrl.verifier.rpc.worker", {"modules": ["support.worker_stand_in"]})
    first, second = (Client(forks, Worker, {"word": "hello"}, name="stand-in") for _ in range(2))
    try:
        first.start()
        second.start()
        server = forks.pid
        assert server is not None
        assert parent(first.pid) == parent(second.pid) == server
        os.kill(server, signal.SIGKILL)
        assert comes(lambda: gone(first.pid) and gone(second.pid))
        first.kill()
        assert first.ask(Worker.greet, 60, "again")[0] == "hello again"
        assert parent(first.pid) == forks.pid != server
    finally:
        first.kill()
        second.kill()
        forks.close()


@pytest.mark.slow
def test_a_closed_fork_server_ends_its_workers_and_forks_no_more() -> None:
    # verdicts still at work when a run is stopped must not bring up what was just ended
    forks = ForkServer("the fork server", "kernrl.verifier.rpc.worker", {"modules": ["support.worker_stand_in"]})
    worker = Client(forks, Worker, {"word": "hello"}, name="stand-in")
    worker.start()
    forks.close()
    assert comes(lambda: gone(worker.pid))
    worker.kill()
    with pytest.raises(InfrastructureError, match="closed"):
        worker.start()


def test_a_fork_server_that_dies_at_once_is_one_sentence() -> None:
    forks = ForkServer("the fork server", "support.no_such_module", {}, quiet=True)
    with pytest.raises(InfrastructureError, match=r"the fork server does not start: ModuleNotFoundError.*no_such_module"):
        forks.start()
    with pytest.raises(InfrastructureError, match="does not start"):
        forks.fork({})
    forks.close()


def test_a_worker_ends_when_its_client_goes(forks: ForkServer) -> None:
    worker = Client(forks, Worker, {"word": "hello"}, name="stand-in")
    worker.start()
    pid = worker.pid
    del worker  # and with it the socket
    assert comes(lambda: gone(pid))


def of_ahead(name: str, capfd: pytest.CaptureFixture[str]) -> tuple[list[str], bool, str]:
    """What a worker finds of a function that its fork server calls ahead, and what the server has said."""
    settings = {"modules": ["support.work_ahead"], "ahead": [f"support.work_ahead:{name}"]}
    forks = ForkServer("the fork server", "kernrl.verifier.rpc.worker", settings)
    worker = Client(forks, Heir, {}, name="heir")
    try:
        found = worker.ask(Heir.found, 60)
        assert parent(worker.pid) == forks.pid
    finally:
        worker.kill()
        forks.close()
    return *found, capfd.readouterr().err


def test_what_is_done_ahead_is_there_in_every_worker(capfd: pytest.CaptureFixture[str]) -> None:
    assert of_ahead("use_no_gpu", capfd) == (["1"], False, "")


@pytest.mark.parametrize("name", ["use_gpu", "spoil_forks"])
def test_a_fork_server_that_has_used_the_gpu_ahead_starts_again_without(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Its forks could not use CUDA."""
    done, _, said = of_ahead(name, capfd)
    assert done == []
    assert said.splitlines() == [
        f"a fork server starts again, without support.work_ahead:{name}: it used the GPU, which no fork could then"
    ]
