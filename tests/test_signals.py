"""Ctrl-C, at any moment: exit code 130, one sentence, and nothing of Python or C++."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.forked import run_forked
from support.terminal import interrupted
from support.toy_runs import losses, sft_arguments

from kernrl.errors import InfrastructureError
from kernrl.tasks.worker_pool import worker_pool
from kernrl.verifier.rpc.answers import Ended
from kernrl.verifier.rpc.fork_server import ForkServer
from kernrl.verifier.rpc.frames import ObjectChannel
from kernrl.verifier.rpc.processes import spawn
from kernrl.verifier.rpc.worker_client import Client

pytestmark = pytest.mark.usefixtures("new_processes")

NOISE = ("Traceback", "Exception", "terminate called", "leaked", "destroy_process_group", "death signal", "Error")

SLOW_TORCH = """
import sys, time
print("loading", file=sys.stderr, flush=True)
try:
    time.sleep(60)
except BaseException:
    raise ImportError("half a module") from None
"""
"""A package that loses an interrupt, as transformers does when one meets an import of its own."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_is_not_lost_in_an_import(tmp_path: Path, number: int) -> None:
    (tmp_path / "torch.py").write_text(SLOW_TORCH)
    # under nohup or in the background some of them are ignored
    take = "import os, signal, sys; signal.signal(int(sys.argv[1]), signal.SIG_DFL); os.execv(sys.argv[2], sys.argv[2:])"
    command = [sys.executable, "-m", "kernrl", "sft", "--output", str(tmp_path / "run")]
    line = [sys.executable, "-c", take, str(int(number)), *command]
    process = subprocess.Popen(line, env=os.environ | {"PYTHONPATH": str(tmp_path)}, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    assert (process.stderr.readline(), process.stderr.readline()) == ("loading torch\n", "loading\n")
    process.send_signal(number)
    assert process.communicate(timeout=50)[1] == "kernrl: Interrupted.\n"
    assert process.returncode == 130


@pytest.mark.slow
def test_an_interrupted_command_waits_for_no_thread() -> None:
    script = """
import atexit, sys, threading
import kernrl.__main__ as entry, kernrl.cli as cli
atexit.register(print, "flushed")
def run(arguments):
    threading.Thread(target=threading.Event().wait).start()
    return 130
cli.run = run
entry.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "flushed\n", "")


def test_an_interrupt_while_torch_is_loaded_clears_the_line(tmp_path: Path) -> None:
    """No module is loaded by then but those of the standard library, so that a script stands for the package."""
    (tmp_path / "kernrl").mkdir()
    for name in ("signals.py", "errors.py", "console.py"):
        (tmp_path / "kernrl" / name).write_text((ROOT / "kernrl" / name).read_text())
    (tmp_path / "kernrl" / "__init__.py").write_text("")
    (tmp_path / "kernrl" / "__main__.py").write_text(
        "from kernrl.signals import handle_signals\nhandle_signals()\n"
        "from kernrl.console import loading_torch\nwith loading_torch():\n    import slow\n"
    )
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    terminal, theirs = os.openpty()
    take = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    line = [sys.executable, "-c", take, sys.executable, "-m", "kernrl"]  # a shell's background jobs ignore it
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "TERM": "xterm"}
    process = subprocess.Popen(line, env=environment, cwd=tmp_path, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while b"loading torch" not in written:
        written += os.read(terminal, 65_536)
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    while not written.endswith(b"Interrupted.\r\n"):
        written += os.read(terminal, 65_536)
    os.close(terminal)
    assert written.endswith(b"loading torch\r\x1b[2K\x1b[?25hkernrl: Interrupted.\r\n")


@pytest.mark.slow
def test_a_command_that_ends_leaves_its_abandoned_threads() -> None:
    """torch's aborts the process where the interpreter is torn down around it; here one prints in its place."""
    script = """
import atexit, os, sys, threading
from concurrent.futures import ThreadPoolExecutor
import kernrl.__main__ as entry, kernrl.cli as cli
atexit.register(print, "flushed")
class Torn:
    def __del__(self):
        os.write(2, b"terminate called")
def run(arguments):
    torn = Torn()
    sys.modules["torn"] = torn
    sys.modules["pool"] = pool = ThreadPoolExecutor(1)  # nobody shuts it down
    pool.submit(int).result()
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    threading.Thread(target=print, args=("written",)).start()
    return 2
cli.run = run
entry.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "written\nflushed\n", "")


def test_processes_that_are_starting_are_out_of_reach() -> None:
    with worker_pool(1) as mapped:
        [mask] = mapped(partial(signal.pthread_sigmask, signal.SIG_BLOCK), [()])
    assert signal.SIGINT in mask
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    process, ours = spawn("kernrl.signals", {})
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
        [mask] = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk")]
        assert mask >> (signal.SIGINT - 1) & 1
    finally:
        process.kill()
        process.wait()
        ours.close()


LEAVES = """
import select, socket, threading
from kernrl.verifier.rpc.fork_loop import serve_forks

def leave():
    select.select([ours], [], [])
    ours.close()  # with a message unread, which resets the connection

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
threading.Thread(target=leave).start()
serve_forks(theirs, None)
"""


def test_a_fork_server_that_is_left_ends_in_silence() -> None:
    assert run_forked(LEAVES) == 0


def test_closing_does_not_wait_for_a_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "never_ready.py").write_text("import time\ndef main(control, settings): time.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    server = ForkServer("the server", "never_ready", {})
    errors: list[Exception] = []

    def start() -> None:
        try:
            server.start()
        except InfrastructureError as error:
            errors.append(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    while server.pid is None:
        pass
    closing = threading.Thread(target=server.close, daemon=True)
    closing.start()
    for waiting in (thread, closing):
        waiting.join(30)
        assert not waiting.is_alive()
    assert len(errors) == 1


def test_a_process_killed_from_another_thread_has_ended() -> None:
    class Forks:
        def fork(self, request: dict[str, Any], *descriptors: int) -> socket.socket:
            ours, theirs = socket.socketpair()
            with theirs:
                process = subprocess.Popen(["sleep", "60"], pass_fds=[theirs.fileno()])
                ObjectChannel(theirs).send(("ok", process.pid))
            return ours

    forks: Any = Forks()
    client, raised = Client(forks, Forks, {}, name="interpreter"), []
    client.start()

    def wait() -> None:
        try:
            client.receive(30)
        except BaseException as error:
            raised.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while (frame := sys._current_frames().get(waiting.ident or 0)) is None or frame.f_code.co_name != "readable":
        pass
    client.kill()
    waiting.join()
    assert [type(error) for error in raised] == [Ended]


# --- in a terminal -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "presses"), [((), 1), ((), 2), (("--launch", "ddp", "--num-processes", "2"), 1)], ids=["once", "twice", "ddp"]
)
def test_training_saves_its_step_and_says_one_sentence(
    model: Path, pairs: Path, tmp_path: Path, more: tuple[str, ...], presses: int
) -> None:
    output = tmp_path / "run"
    line = [word for word in sft_arguments(model, pairs, output, *more, "--steps", "100000") if word != "--quiet"]
    code, said = interrupted(line, r"sft: step \d", presses=presses)
    assert code == 130
    assert said.count("kernrl: Interrupted.") == 1
    assert not [word for word in NOISE if word in said], said
    if presses == 1:
        assert (output / f"step_{max(losses(output))}" / "COMPLETE").exists()


@pytest.mark.slow
def test_a_closed_terminal_saves_the_step(model: Path, pairs: Path, tmp_path: Path) -> None:
    """As a lost ssh connection does: SIGHUP, and nothing more can be printed."""
    output = tmp_path / "run"
    line = [word for word in sft_arguments(model, pairs, output, "--steps", "100000") if word != "--quiet"]
    code, _ = interrupted(line, r"sft: step \d", presses=0, close=True)
    assert code == 130
    assert (output / f"step_{max(losses(output))}" / "COMPLETE").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "when"),
    [
        (["sft", "--count", "200", "--workers", "1", "--output"], "preparing pairs"),
        (["serve", "--port", "0", "--cache-dir"], "http://127"),
    ],
    ids=["data", "serve"],
)
def test_other_processes_say_nothing(line: list[str], when: str, tmp_path: Path) -> None:
    code, said = interrupted([*line, str(tmp_path / "made")], when)
    assert code == 130
    assert said.count("kernrl: Interrupted.") == 1
    assert not [word for word in NOISE if word in said], said
