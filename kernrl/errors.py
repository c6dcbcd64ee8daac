"""The errors a user can meet, and the exit code each one ends a command with."""


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
