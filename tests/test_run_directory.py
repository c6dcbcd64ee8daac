"""One directory a run: who may write there, and when it may be begun anew."""

import json
import os
from pathlib import Path

import pytest

from kernrl.config import DoctorConfig, SamplesConfig
from kernrl.errors import UsageError
from kernrl.stages.run import RunDirectory


def test_a_run_that_was_refused_at_once_is_begun_anew(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path / "run", SamplesConfig(run=Path("wrong")), resume=False)
    RunDirectory.open(tmp_path / "run", SamplesConfig(run=Path("right")), resume=False)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["run"] == "right"


def test_what_a_run_did_is_not_written_over(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path / "run", DoctorConfig(), resume=False).log(step=1)
    with pytest.raises(UsageError, match=r"--output: .*run is not empty"):
        RunDirectory.open(tmp_path / "run", DoctorConfig(), resume=False)


def test_the_config_of_something_else_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(UsageError, match="is not empty"):
        RunDirectory.open(tmp_path, DoctorConfig(), resume=False)


@pytest.mark.parametrize("resume", [False, True])
def test_two_processes_do_not_write_into_one_run(tmp_path: Path, resume: bool) -> None:
    RunDirectory.open(tmp_path, DoctorConfig(), resume=False)
    child = os.fork()
    if not child:
        try:
            RunDirectory.open(tmp_path, DoctorConfig(), resume=resume)
        except UsageError as error:
            os._exit(2 if "another process is at work" in str(error) else 3)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
