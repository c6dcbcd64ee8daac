"""Where an output's elements lie in memory, beside the reference's. It changes no number, so it is said and not refused."""

from __future__ import annotations

from collections.abc import Sequence

from kernrl.verifier.plan.plan import TensorRef, TensorSpec


def layout_notes(outputs: Sequence[TensorRef], wanted: Sequence[TensorSpec]) -> list[str]:
    """A sentence for every output whose strides a caller may stumble over.

    Strides of axes of size 1 mean nothing. A contiguous output is what most callers expect, even where the reference returns
    a transposed view; but not where it returns channels-last, which the convolutions behind it would keep.

    It is a note, as the reference's strides are known from its trace alone: which layout a library call returns depends on
    the backend that a GPU picks (attention and convolutions above all).
    """
    notes = []
    for position, (got, want) in enumerate(zip(outputs, wanted, strict=False)):
        own, other = _strides(got.shape, got.stride), _strides(want.shape, want.stride)
        contiguous = own == _strides(got.shape, _ordered(got.shape, range(len(got.shape))))
        if got.shape != want.shape or own == other or not all(got.shape):
            continue
        last = other == _strides(want.shape, _channels_last(want.shape))
        if contiguous and not last:
            continue
        fix = (
            "contiguous(memory_format=torch.channels_last" + ("_3d)" if len(want.shape) == 5 else ")")
            if last
            else "contiguous()"
        )
        notes.append(
            f"Output {position} has the strides {list(got.stride)}, and the reference's {list(want.stride)}: where callers rely"
            f" on them (`.view`, raw pointers), return `.{fix}`."
        )
    return notes


def _strides(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """Those that mean something."""
    return [step for size, step in zip(shape, stride, strict=True) if size > 1]


def _ordered(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Strides of a tensor without gaps whose axes lie in this order, outermost first."""
    stride, step = [0] * len(shape), 1
    for axis in reversed(axes):
        stride[axis] = step
        step *= shape[axis]
    return stride


def _channels_last(shape: Sequence[int]) -> list[int]:
    """Of images and volumes; nothing else has channels to put last."""
    rank = len(shape)
    return _ordered(shape, [0, *range(2, rank), 1]) if rank in (4, 5) else [0] * rank
