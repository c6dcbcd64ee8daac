"""How a trusted process answers a call: one pair, used by workers, the GPU process and Ray's actors alike."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any, Literal

from kernrl.errors import InfrastructureError, InternalError, UsageError

Kind = Literal["ok", "usage", "out of memory", "ours", "broken", "failed", "dead"]
Answer = tuple[Kind, Any]
"""The kind, and the value returned or a message. A plain tuple needs none of this project's types to be read."""


class Failed(RuntimeError):
    """The call raised; the process is usable."""


class Died(RuntimeError):
    """The call left the process unusable (a lost CUDA context); the client has ended it."""


class Ended(InfrastructureError):
    """The process died during the call, by itself or from outside."""

    def __init__(self, reason: str, code: int | None):
        """`code`: its exit code, a negative one the signal it died of; None where nobody knows."""
        super().__init__(reason)
        self.code = code


class OutOfMemory(InfrastructureError):
    """The GPU has no memory left, perhaps because of other work on it."""


_NO_MEMORY = ("CUDA out of memory", "CUDA_ERROR_OUT_OF_MEMORY", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_PERHAPS_NO_MEMORY = ("unable to find an engine to execute", "Offset increment outside graph capture")
"""How libraries say that the GPU is full, and what they say when that is the likely cause."""


def lacks_memory(said: str) -> bool:
    """Whether an error's text says that the GPU's memory is full."""
    return any(text in said for text in _NO_MEMORY)


def may_lack_memory(said: str) -> bool:
    """Whether it says that, or what mostly follows from it."""
    return lacks_memory(said) or any(text in said for text in _PERHAPS_NO_MEMORY)


class TimedOut(RuntimeError):
    """The process did not answer in time and was killed."""


def answer_to(call: Callable[[], Any], *, healthy: Callable[[], bool] = lambda: True) -> Answer:
    """Run a call and say how it went. `healthy` tells, after an unexpected exception, whether the process is still usable."""
    try:
        return "ok", call()
    except UsageError as error:
        return "usage", str(error)
    except OutOfMemory as error:
        return "out of memory", str(error)
    except InternalError as error:
        return "ours", str(error) + f"\n{error.traceback}" * bool(error.traceback)
    except InfrastructureError as error:
        return "broken", str(error)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".split("\nCUDA kernel errors")[0].split("\nSearch for")[0].strip()
        if os.environ.get("KERNRL_TRACEBACKS"):
            text += "\n" + traceback.format_exc()
    # outside the handler, where the exception no longer keeps the call's tensors alive
    return ("failed" if healthy() else "dead"), text


def value_of(answer: Answer) -> Any:
    """The value of an answer.

    Raises:
        UsageError: the task itself is at fault.
        OutOfMemory: the GPU's memory is full.
        InternalError: a fault of kernrl itself.
        InfrastructureError: the machinery broke.
        Failed: the call raised something else; the process is usable.
        Died: it did, and the process is not.
    """
    kind, value = answer
    if kind == "ok":
        return value
    if kind == "ours":
        raise InternalError(*value.split("\n", 1))
    errors = {"usage": UsageError, "out of memory": OutOfMemory, "broken": InfrastructureError, "dead": Died}
    raise errors.get(kind, Failed)(value)
