"""`sanitize_losses.py` with a stand-in for compute-sanitizer: every kernel is looked at, and what is found is an error."""

import re
import sys
from pathlib import Path

import pytest
import sanitize_losses  # pyright: ignore[reportMissingImports]
from support import ROOT

STAND_IN = """#!/bin/sh
case "$*" in
    *"racecheck"*"_loss_kernel, odd rows") echo "{race}"; exit {code};;
    *"_tokens_kernel, gmpo") echo "Traceback"; exit 1;;
    *"_resident_kernel, long rows") exit 77;;
    *"_scale_kernel"*) exit 0;;
    *) echo "$PYTORCH_NO_CUDA_MEMORY_CACHING ========= ERROR SUMMARY: 0 errors"; exit 0;;
esac
"""


def run(tmp_path: Path, monkeypatch, capsys, *flags: str, race: str = "", code: int = 0) -> tuple[int, dict[str, str]]:
    """(exit code, what is said of each tool and kernel)."""
    program = tmp_path / "compute-sanitizer"
    program.write_text(STAND_IN.format(race=race, code=code))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "argv", ["sanitize_losses.py", *flags])
    result = sanitize_losses.main()
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    return result, dict(line.rsplit(": ", 1) for line in lines)


def test_every_kernel_has_a_case_for_each_tool(tmp_path, monkeypatch, capsys):
    result, said = run(tmp_path, monkeypatch, capsys, race="RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)")
    assert result == 1
    assert len(said) == 2 * len(sanitize_losses.CASES)
    kernels = {
        name
        for path in (ROOT / "kernrl" / "kernels").rglob("*.py")
        for name in re.findall(r"jit[^\n]*\ndef (_\w+_kernel)\(", path.read_text())
    }
    assert len(kernels) == 10
    for kernel in kernels:
        assert any(kernel in case for case in sanitize_losses.CASES), kernel
    assert said["racecheck: _loss_kernel, odd rows"] == "3 found"
    assert said["memcheck: _loss_kernel, odd rows"] == "nothing found"
    assert said["memcheck: _tokens_kernel, gmpo"] == "failed (exit code 1)"
    assert said["memcheck: _scale_kernel, by another factor than 1"] == "failed (exit code 0)"  # the tool said nothing
    assert said["memcheck: _resident_kernel, long rows"].startswith("not run")


@pytest.mark.parametrize(
    ("race", "code", "result"),
    [("SUMMARY: 0 hazards displayed", 0, 0), ("SUMMARY: 1 hazard displayed", 0, 1), ("SUMMARY: 2 errors", 86, 1), ("", 86, 1)],
)
def test_the_exit_code_says_whether_anything_was_found(tmp_path, monkeypatch, capsys, race, code, result):
    got, said = run(tmp_path, monkeypatch, capsys, "--kernels", "_loss", race=race, code=code)
    assert got == result
    assert len(said) == 6


def test_without_the_tool_one_sentence_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sanitize_losses, "OF_TOOLKIT", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["sanitize_losses.py"])
    assert sanitize_losses.main() == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert "compute-sanitizer is not installed" in output.err
