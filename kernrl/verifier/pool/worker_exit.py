"""What the death of a worker says about the candidate whose data it was handling."""

from __future__ import annotations

import signal

from kernrl.verifier.base.verdict import Rejection, Status
from kernrl.verifier.rpc.answers import Ended
from kernrl.verifier.rpc.limits import CPU_SIGNAL, CRASH_SIGNALS


def rejection_for(ended: Ended, doing: str, too_long: Rejection) -> Rejection:
    """The rejection for a worker that ended while `doing` something for a candidate: `too_long` for used up CPU seconds,
    `crash` for what it did to itself. Raises `ended` for anything else, which came from outside."""
    number = -ended.code if ended.code is not None else 0
    if number == CPU_SIGNAL:
        return too_long
    if number in CRASH_SIGNALS:
        return Rejection(Status.CRASH, f"The process died of {signal.Signals(number).name} while {doing}.")
    if ended.code is not None and ended.code >= 0:
        return Rejection(Status.CRASH, f"The process ended itself (exit code {ended.code}) while {doing}.")
    raise ended
