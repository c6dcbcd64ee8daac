"""Files that appear whole or not at all, and what is said where they cannot."""

import os
import resource
import sys
from pathlib import Path

import pytest
from support.synthetic_run import make_eval_run

from kernrl import cli
from kernrl.errors import UsageError
from kernrl.files import atomic_write, new_folder, replace_file


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    page = tmp_path / "none" / "page.html"
    with pytest.raises(UsageError, match=r"page\.html: there is no folder .*none; make it"):
        replace_file(page, "text")
    with pytest.raises(UsageError, match="there is no folder"), atomic_write(page):
        pass


def test_a_folder_below_a_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"--out: .*file/run cannot be made"):
        new_folder(tmp_path / "file" / "run", "--out")


def test_a_full_disk_leaves_nothing_and_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of a file stands for the disk."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python 3.11 would keep compiled modules cut off at the limit
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        code = cli.run(["tasks", "generate", "--out", str(tmp_path / "t"), "--count", "20", "--workers", "1", "--quiet"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1
    said = capsys.readouterr().err
    assert said == f"kernrl: {tmp_path}/t/tasks.jsonl: File too large; make room, or name another place.\n"
    assert not (tmp_path / "t").exists()


@pytest.fixture
def closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that nothing can be written to, as on a disk that is mounted for reading. Root may write to any other."""
    closed = tmp_path / "closed"
    closed.mkdir()
    asked = os.access

    def access(path: Path, mode: int) -> bool:
        return asked(path, mode) and not (mode & os.W_OK and Path(path).absolute() == closed)

    monkeypatch.setattr(os, "access", access)
    return closed


@pytest.mark.parametrize(
    "line",
    [
        *(f"sft --output {where}" for where in ("closed", "closed/run", "closed/a/run")),
        "best-of-n --model nano --output closed/run",
        "reinforce --model nano --output closed/run",
        "reward-weighted --model nano --output closed/run",
        "eval --output closed/run",
        "optimize my.py --output closed/run",
        "tasks generate --out closed/tasks",
    ],
)
def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_loaded(
    line: str, closed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(closed.parent)
    monkeypatch.setattr("kernrl.cli.loading_torch", lambda: pytest.fail("it is refused before"))
    assert cli.run(line.split()) == 2
    *_, flag, place = line.split()
    which = "it" if place == "closed" else closed
    assert capsys.readouterr().err == f"kernrl: {flag} {place}: {which} cannot be written to; name another folder.\n"


@pytest.mark.parametrize(
    "line",
    [
        "report run --output closed/page.html",
        "tasks lift heldout#2 --svg closed/g.svg",
        "verify --pairs x --out closed/v.jsonl",
    ],
)
def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    line: str, closed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(closed.parent)
    make_eval_run(Path("run"))
    monkeypatch.setattr("kernrl.stages.tasks_lift.in_child", lambda *_: pytest.fail("it is refused before"))
    assert cli.run(line.split()) == 2
    *_, flag, place = line.split()
    assert capsys.readouterr().err == f"kernrl: {flag} {place}: closed cannot be written to; name a file in another folder.\n"


def test_an_error_of_another_file_keeps_its_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="other"), atomic_write(tmp_path / "page") as file:
        file.write((tmp_path / "other").read_text())
    assert not list(tmp_path.iterdir())


def test_a_folder_that_takes_no_files_is_named() -> None:
    with pytest.raises(UsageError, match="/proc/page: no file can be created in /proc; name another folder"):
        replace_file(Path("/proc/page"), "text")
