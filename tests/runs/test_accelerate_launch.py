"""`--launch` starts the processes, passes signals on, and ends as they do."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support import EXHAUSTIVE
from support.forked import run_forked
from support.toy_runs import losses
from support.toy_runs import sft_arguments as sft

from kernrl.cli import run


@pytest.mark.slow
@pytest.mark.skipif(not EXHAUSTIVE, reason="by day a run that is stopped shows that real processes train together")
def test_a_launched_run_ends(model, pairs, tmp_path):
    command = [sys.executable, "-m", "kernrl", *sft(model, pairs, tmp_path / "run", "--launch", "ddp", "--num-processes", "2")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(losses(tmp_path / "run")) == 4


LAUNCHER = """
import os, sys
from kernrl.runs import accelerate_launch

os.chdir(sys.argv[1])
try:
    sys.exit(accelerate_launch.start("ddp", 2, ["train", sys.argv[2]]))
except Exception as error:
    print(error, file=open("said.txt", "w"))
    sys.exit(3)
"""
RANK = """
import os, signal, sys

assert sys.argv[1] == "train"
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGKILL) if sys.argv[2] == "killed" else sys.exit(int(sys.argv[2]))
"""


@pytest.mark.slow
def test_it_ends_as_its_processes_do(tmp_path, monkeypatch):
    """With processes that are ours by name alone: those of a command take five CPU seconds each to start."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)  # which a command in an earlier test has set
    (tmp_path / "kernrl.py").write_text(RANK)
    assert [run_forked(LAUNCHER, str(tmp_path), code) for code in ("0", "2", "killed")] == [0, 2, 3]
    assert "Process 1 of 2 was killed by SIGKILL" in (tmp_path / "said.txt").read_text()


@pytest.mark.slow
def test_a_scheduler_that_stops_the_launcher_saves_the_step(model, pairs, tmp_path):
    """Ctrl-C, which a terminal sends to every process, is in tests/test_signals.py."""
    flags = ("--launch", "ddp", "--num-processes", "2", "--steps", "100000")
    command = [sys.executable, "-m", "kernrl", *sft(model, pairs, tmp_path / "run", *flags)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "run" / "step_2").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=120)[1].count("Traceback") == 0
    assert process.returncode == 130
    last = max(losses(tmp_path / "run"))
    assert (tmp_path / "run" / f"step_{last}" / "COMPLETE").exists()


@pytest.mark.slow
def test_one_process_is_not_launched(model, pairs, tmp_path, capsys):
    assert run(sft(model, pairs, tmp_path / "run", "--launch", "ddp", "--num-processes", "1")) == 2
    assert "is for two processes or more" in capsys.readouterr().err
