"""Interpreter processes come from a fork server of their own, and outlive neither it nor the nursery."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path

import pytest

from kernrl.errors import InfrastructureError
from kernrl.verifier.pool import fork_server as nursery_module
from kernrl.verifier.rpc.process import Nursery, Process


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


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


def test_interpreters_share_a_fork_server_that_is_replaced_when_it_dies(nursery: Nursery) -> None:
    first, second = (Process(nursery, "cpu", "", {}) for _ in range(2))
    assert first.ask("well", timeout_s=60)
    assert second.ask("well", timeout_s=60)
    assert nursery._server
    server = parent(first._pid)
    assert parent(second._pid) == server
    assert parent(server) == nursery._server.pid
    os.kill(server, signal.SIGKILL)
    assert comes(lambda: gone(first._pid) and gone(second._pid))
    first.kill()
    assert first.ask("well", timeout_s=60)
    assert parent(first._pid) != server


def test_closing_the_nursery_ends_interpreters_and_their_server(nursery: Nursery) -> None:
    process = Process(nursery, "cpu", "", {})
    assert process.ask("well", timeout_s=60)
    server = parent(process._pid)
    nursery.close()
    assert comes(lambda: gone(process._pid) and gone(server))


def test_a_closed_nursery_forks_nothing_any_more() -> None:
    # verdicts still at work when a run is stopped must not bring up what was just ended
    made = Nursery()
    process = Process(made, "cpu", "", {})
    process.start()
    made.close()
    process.kill()
    with pytest.raises(InfrastructureError, match="closed"):
        process.start()


def test_a_process_whose_asker_has_gone_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, channel = Pipe()

    def hung_up(*asked: object) -> tuple[str, None]:
        asker.close()
        return "ok", None

    monkeypatch.setattr(nursery_module, "_answer", hung_up)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    asker.send(("method", ()))
    nursery_module._serve({"device": "", "role": "cpu", "settings": {}}, channel)
