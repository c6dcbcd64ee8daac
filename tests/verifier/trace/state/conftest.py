"""Modules are recorded without a sandbox here."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the working folder are part of what a module may change: others write to the repository meanwhile."""
    monkeypatch.chdir(tmp_path)
