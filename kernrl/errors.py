"""The errors a user can meet, and the exit code each one ends a command with."""

from collections.abc import Sequence
from difflib import get_close_matches


class KernrlError(Exception):
    """Base of every error kernrl raises on purpose; the CLI prints its sentence without a traceback."""

    exit_code = 1


class UsageError(KernrlError, ValueError):
    """Bad input: the message is one sentence naming the file or flag and the remedy."""

    exit_code = 2


class RunError(KernrlError, RuntimeError):
    """A run that was set up correctly and failed."""

    exit_code = 1


class InfrastructureError(KernrlError, RuntimeError):
    """The machinery broke (a dead worker, a lost GPU), so nothing can be said about the candidate."""

    exit_code = 3


class InternalError(InfrastructureError):
    """A fault of kernrl itself while it handled a candidate: it would come again, so nothing is tried again."""

    def __init__(self, reason: str, traceback: str = ""):
        """`traceback`: where it happened, for the log."""
        super().__init__(reason)
        self.traceback = traceback


def did_you_mean(word: str, words: Sequence[str]) -> str:
    """A closing half-sentence for an unknown name: the nearest known one, or all there are."""
    near = get_close_matches(word, words, n=1)
    return f"did you mean {near[0]!r}?" if near else f"it is one of {', '.join(words) or '(none)'}."
