"""A script in a process of its own that need not import torch and transformers again, which takes five CPU seconds."""

from __future__ import annotations

import multiprocessing
import sys


def _run(script: str, arguments: tuple[str, ...]) -> None:
    sys.argv = ["-c", *arguments]
    exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})


def run_forked(script: str, *arguments: str, timeout_s: float = 120) -> int | None:
    """Exit code of a script, run by a fork of the test's process; a negative one is the signal that ended it.

    None where it took too long, and was killed.
    """
    process = multiprocessing.get_context("fork").Process(target=_run, args=(script, arguments))
    process.start()
    process.join(timeout_s)
    code = process.exitcode
    process.kill()
    process.join()
    return code
