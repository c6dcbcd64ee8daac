"""The GPU's clock is taken only from when a run was on the GPU, and its asking ends with the context."""

import time
from pathlib import Path

import pytest
from gpu_clock import GpuClock  # pyright: ignore[reportMissingImports]

SMI = """#!/bin/sh
echo "$@" >> {folder}/asked
for mhz in 1980 1200 "[N/A]" 1300 1980; do echo "$mhz"; sleep 0.3; done
exec sleep 60
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI.format(folder=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.slow
def test_the_clock_is_that_of_the_spans(smi: Path):
    with GpuClock("GPU-1") as clock:
        while len(clock.seen) < 4:
            time.sleep(0.01)
    assert [mhz for _, mhz in clock.seen] == [1980, 1200, 1300, 1980]
    at = [when for when, _ in clock.seen]
    assert clock.median_mhz([(at[1], at[1]), (at[2], at[2])]) == 1250
    assert clock.median_mhz([(at[0] - 1, at[3] + 1)]) == 1640
    assert clock.median_mhz([(at[3] + 1, at[3] + 2)]) is None
    assert clock.process.poll() is not None
    assert "--id=GPU-1 --query-gpu=clocks.sm" in (smi / "asked").read_text()
