"""A quiet console is undone after each test; and fixtures of the tests that train: a tiny model, tasks, a toy verifier."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kernrl.console import log


@pytest.fixture(autouse=True)
def audible() -> Iterator[None]:
    """`--quiet` in one test is not for the next one in the same process."""
    log.quiet = False
    yield
    log.quiet = False


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny policy with fresh weights; read only."""
    from support.tiny import save_tiny_policy

    return save_tiny_policy(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of four tasks."""
    from support.tiny import tiny_tasks

    from kernrl.tasks.rows import write_tasks

    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    write_tasks(path, tiny_tasks())
    return path


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of pairs for `kernrl sft`."""
    from support.toy_runs import write_pairs

    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.jsonl")


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch):
    """The verifier of every training stage, which judges by `toy_runs.judge` and remembers what it was asked."""
    from support import toy_runs
    from support.tiny import FakeVerifier

    from kernrl.training import session

    fake = FakeVerifier(toy_runs.judge)
    monkeypatch.setattr(session, "open_verifier", lambda config: fake)
    return fake


@pytest.fixture(autouse=True)
def no_word_while_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command says after some seconds would come and go with the load of the machine."""
    monkeypatch.setattr("kernrl.console.FIRST_S", 3600.0)
