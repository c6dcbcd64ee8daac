"""The public losses on a CPU by their Triton kernels, for drawn inputs, in the process of `interpreted.py`.

A request is [one of `drawn_losses.LOSSES`, how many inputs to draw]; the answer is how many launches that took.
"""

from pathlib import Path

import torch
from hypothesis import settings
from torch.overrides import TorchFunctionMode

from kernrl.kernels.launch import Variant
from kernrl.kernels.over_tokens import token_reduce
from support import EXHAUSTIVE
from support import interpreted_kernels as _short_rows_in_several_tiles  # noqa: F401
from support.drawn_losses import Place, check_any

if not EXHAUSTIVE:
    settings.register_profile("repeatable", derandomize=True, database=None)
    settings.load_profile("repeatable")


class AsOnGpu(TorchFunctionMode):
    """Tensors say that they are on a GPU, so that losses take their kernels."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return True if func == torch.Tensor.is_cuda.__get__ else func(*args, **(kwargs or {}))


def answer(request: list, folder: Path) -> int:
    name, examples = request
    launches = 0
    launch = Variant.__call__

    def counted(*args, **kwargs):
        nonlocal launches
        launches += 1
        return launch(*args, **kwargs)

    held = token_reduce.PER_SM
    Variant.__call__, token_reduce.PER_SM = counted, 1  # of several programs the first would wait for the others for ever
    try:
        check_any(name, Place(kernels=True, entered=AsOnGpu, vocabularies=(1024, 1025, 2500)), examples)
    finally:
        Variant.__call__, token_reduce.PER_SM = launch, held
    return launches
