"""`--launch` starts the processes, passes signals on, and ends as they do."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.toy_runs import losses
from support.toy_runs import sft_arguments as sft

from kernrl.cli import run


@pytest.mark.slow
def test_the_flag_starts_the_processes_and_ends_with_their_exit_code(model, pairs, tmp_path):
    command = [sys.executable, "-m", "kernrl", *sft(model, pairs, tmp_path / "run", "--launch", "ddp", "--num-processes", "2")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    first = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert first.returncode == 0, first.stderr
    assert len(losses(tmp_path / "run")) == 4
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert second.returncode == 2
    assert second.stderr.count("is not empty") == 1


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


def test_one_process_is_not_launched(model, pairs, tmp_path, capsys):
    assert run(sft(model, pairs, tmp_path / "run", "--launch", "ddp", "--num-processes", "1")) == 2
    assert "is for two processes or more" in capsys.readouterr().err
