"""The picture of a terminal: what commands printed is drawn, and can be drawn again from the transcript."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support import ROOT


@pytest.fixture(scope="module")
def picture() -> Any:
    spec = importlib.util.spec_from_file_location("terminal_picture", ROOT / "scripts" / "terminal_picture.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def text_of(svg: Path) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "", svg.read_text())).replace("\xa0", " ")


def test_commands_are_drawn_and_drawn_again_without_running(
    picture: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, kept, count = tmp_path / "a" / "one.svg", tmp_path / "b" / "one.json", tmp_path / "count"
    picture.main(["--out", str(out), "--transcript", str(kept), f"echo ran >> {count}; echo 1.43x faster", "echo done >&2"])
    assert "$ echo done" in text_of(out)
    assert "1.43x faster" in text_of(out)
    shown = json.loads(kept.read_text())["commands"]
    assert [entry["output"] for entry in shown] == ["1.43x faster\n", "done\n"]
    picture.main(["--out", str(tmp_path / "two.svg"), "--transcript", str(kept), "--columns", "60"])
    assert "1.43x faster" in text_of(tmp_path / "two.svg")
    assert count.read_text() == "ran\n"
    assert "1.43x faster" in capsys.readouterr().out


def test_a_command_that_fails_draws_nothing(picture: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="exited with 3; nothing was drawn"):
        picture.main(["--out", str(tmp_path / "x.svg"), "exit 3"])
    assert not (tmp_path / "x.svg").exists()
    with pytest.raises(SystemExit):
        picture.main(["--out", str(tmp_path / "x.svg")])


def test_a_checkout_that_is_not_installed_has_the_command_all_the_same(
    picture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    [entry] = picture.recorded(["cat $(command -v kernrl)"], 80)
    assert entry["output"].splitlines()[1] == f"exec '{tmp_path}/a python' -m kernrl \"$@\""


def test_a_transcript_holds_no_place_of_this_machine(picture: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "home" / "work"
    work.mkdir(parents=True)
    (tmp_path / "home" / "work-2").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(work)
    command = (
        "echo $PWD/faster/best.py; echo ~/.cache/x ~/work-2; echo \"'/a/lib/site-packages/torch/x.py:1: Warning'\"; echo $PWD."
    )
    picture.main(["--out", "x.svg", "--transcript", "x.json", "--commit", "abc", command])
    kept = json.loads(Path("x.json").read_text())
    assert kept["commit"] == "abc"
    [entry] = kept["commands"]
    assert entry["output"] == "./faster/best.py\n~/.cache/x ~/work-2\n'site-packages/torch/x.py:1: Warning'\n..\n"
    assert str(tmp_path) not in Path("x.json").read_text() + Path("x.svg").read_text()
    monkeypatch.chdir("/")
    assert picture.without_places("1/2 of a/b") == "1/2 of a/b"
