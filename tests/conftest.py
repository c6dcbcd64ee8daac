"""Fixtures of the tests that train: a tiny model, tasks for it, and a verifier that judges by a toy rule."""

from pathlib import Path

import pytest


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
