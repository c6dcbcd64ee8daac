"""Recording what PyTorch code would do, without doing it: both modes on, and left as they were found."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kernrl.verifier.base.compat import has_default_device, mode_depth
from kernrl.verifier.trace.look_like_cuda import LookLikeCuda
from kernrl.verifier.trace.record_aten import RecordAten
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.untraceable import Untraceable


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Within, ATen calls of this thread are recorded and nothing is computed."""
    before, Recorder.current = Recorder.current, recorder
    try:
        with LookLikeCuda(recorder), RecordAten(recorder):
            depth = mode_depth()
            yield
            if mode_depth() != depth and has_default_device():
                raise Untraceable("the code leaves torch.set_default_device on: say where tensors are made, by device=x.device")
            if mode_depth() != depth:
                raise Untraceable("the code leaves a mode of torch on: leave its block again, or do without")
    finally:
        Recorder.current = before
