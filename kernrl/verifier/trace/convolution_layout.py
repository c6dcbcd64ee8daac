"""Where cuDNN writes a convolution's result, which meta tensors do not know."""

from __future__ import annotations

import torch
from torch import Tensor

CONVOLUTIONS = frozenset(("aten.convolution.default", "aten._convolution.default"))
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def as_cudnn_writes(result: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """A convolution's result with the channels innermost where the image or the weight has them so, as on a GPU.

    On the meta device every result is contiguous: the plan would then ask for a copy into that order and for another one back,
    of which a real run makes none.
    """
    last = LAST.get(result.dim())
    if last is None or torch.float64 in (x.dtype, weight.dtype) or not (_is_last(x, last) or _is_last(weight, last)):
        return result
    return torch.empty_like(result, memory_format=last)


def _is_last(x: Tensor, last: torch.memory_format) -> bool:
    return x.is_contiguous(memory_format=last) and not x.is_contiguous()
