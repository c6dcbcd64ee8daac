"""The one form of answer: what a call raises there is raised here, as the same kind of thing."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernrl.errors import InfrastructureError, UsageError
from kernrl.verifier.rpc import worker
from kernrl.verifier.rpc.answers import Died, Failed, OutOfMemory, answer_to, may_lack_memory, value_of


def raising(error: Exception) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "kind", "raised"),
    [
        (UsageError("the task"), "usage", UsageError),
        (OutOfMemory("full"), "out of memory", OutOfMemory),
        (InfrastructureError("lost"), "broken", InfrastructureError),
        (KeyError("k"), "failed", Failed),
    ],
)
def test_kinds(error: Exception, kind: str, raised: type[Exception]) -> None:
    answer = answer_to(raising(error))
    assert answer[0] == kind
    with pytest.raises(raised) as caught:
        value_of(pickle.loads(pickle.dumps(answer)))
    assert type(caught.value) is raised
    assert str(error) in str(caught.value)


def test_a_value_comes_back() -> None:
    assert value_of(answer_to(lambda: {"a": (1, None)})) == {"a": (1, None)}


def test_health_is_asked_only_after_an_unexpected_error() -> None:
    asked = []

    def unhealthy() -> bool:
        asked.append(True)
        return False

    for expected in (UsageError("x"), OutOfMemory("x"), InfrastructureError("x")):
        assert answer_to(raising(expected), healthy=unhealthy)[0] != "dead"
    assert not asked
    with pytest.raises(Died, match=r"^RuntimeError: CUDA error: an illegal memory access$"):
        value_of(
            answer_to(
                raising(RuntimeError("CUDA error: an illegal memory access\nCUDA kernel errors might be asynchronous")),
                healthy=unhealthy,
            )
        )
    assert asked == [True]


def test_a_failed_call_keeps_nothing_alive() -> None:
    """What a call held, tensors for instance, is free when the process is asked whether it is well."""

    class Tensor:
        pass

    alive: list[weakref.ref[Tensor]] = []

    def call() -> None:
        held = Tensor()
        alive.append(weakref.ref(held))
        raise ValueError("out of luck")

    assert answer_to(call, healthy=lambda: alive[0]() is None)[0] == "failed"


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7.97 GiB. GPU 0 has"), OutOfMemory),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), OutOfMemory),
        (RuntimeError("load k: CUDA_ERROR_OUT_OF_MEMORY"), OutOfMemory),
        (RuntimeError("load k: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"), RuntimeError),
        (ValueError("out of range"), ValueError),
    ],
)
def test_a_full_gpu_is_told_from_other_errors(error: Exception, raised: type[Exception]) -> None:
    server: Any = SimpleNamespace(call=raising(error))
    with pytest.raises(raised) as found:
        worker.call(server, "call", ())
    assert isinstance(found.value, OutOfMemory) == (raised is OutOfMemory)


def test_what_follows_from_a_full_gpu_is_suspected_of_it() -> None:
    assert may_lack_memory("RuntimeError: FIND was unable to find an engine to execute this computation")
    assert may_lack_memory("Offset increment outside graph capture encountered unexpectedly.")
    assert not may_lack_memory("an illegal memory access was encountered")
