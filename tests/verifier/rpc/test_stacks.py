"""What a process that seems to hang waits for."""

from __future__ import annotations

import signal
import subprocess
import sys

WAITS = """
import threading
from kernrl.verifier.rpc.processes import show_stacks_on_request
show_stacks_on_request()
def waits_for_ever(): threading.Event().wait()
threading.Thread(target=waits_for_ever, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_a_signal_shows_the_stack_of_every_thread_and_ends_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGUSR1)
        said = [process.stderr.readline() for _ in range(6)]
        assert any("in waits_for_ever" in line for line in said)
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()
