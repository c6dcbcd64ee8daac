"""Modes of torch in which users call a module and a trace does not: they are answered to whoever asks.

Autocast casts to the type that the tensors have already, so that code which follows it does what it did, and parameters seem
to be frozen. Anomalies seem to be looked for, and cuDNN to search for the fastest algorithm: neither changes a result.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernrl.verifier.base.compat import cudnn_searches
from kernrl.verifier.trace.recorder import Recorder

_casting_to: list[torch.dtype] = []
"""The type of the autocast that is answered, if any."""


def install(asked_by_candidate: Callable[[int], bool]) -> None:
    """Replace torch's questions about autocast, for good. Once, before candidates."""

    def answered(function: Any, answer: Callable[[], Any], frames: int = 2) -> Any:
        @functools.wraps(function, updated=())
        def ask(*args: Any, **kwargs: Any) -> Any:
            return answer() if _casting_to and asked_by_candidate(frames) else function(*args, **kwargs)

        return ask

    def casting_to() -> torch.dtype:
        return _casting_to[0]

    questions = {
        "is_autocast_enabled": lambda: True, "get_autocast_dtype": casting_to, "get_autocast_gpu_dtype": casting_to,
        "is_anomaly_enabled": lambda: True,
    }  # fmt: skip
    for name, answer in questions.items():
        asked = answered(getattr(torch, name), answer)
        for place in (torch, torch._C):
            setattr(place, name, asked)
    searches = cudnn_searches()  # an attribute, which a method of torch's reads
    searches.getter = answered(searches.getter, lambda: True, 3)


@contextlib.contextmanager
def varied(recorder: Recorder, dtype: torch.dtype) -> Iterator[None]:
    """Within, autocast to `dtype` seems to be on, and parameters not to require gradients."""
    _casting_to.append(dtype)
    recorder.frozen = True
    try:
        yield
    finally:
        _casting_to.clear()
        recorder.frozen = False
