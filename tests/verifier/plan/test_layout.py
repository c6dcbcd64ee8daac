"""Strides that differ from the reference's are said where a caller may stumble over them."""

import pytest
import torch

from kernrl.verifier.plan.layout import layout_notes
from kernrl.verifier.plan.plan import TensorRef, TensorSpec

LAST = torch.channels_last
ROWS, IMAGE, VOLUME = torch.empty(6, 8), torch.empty(2, 3, 4, 5), torch.empty(2, 3, 4, 5, 6)


def notes(own: torch.Tensor, reference: torch.Tensor) -> list[str]:
    shape, stride = tuple(own.shape), tuple(own.stride())
    wanted = TensorSpec("float32", tuple(reference.shape), tuple(reference.stride()))
    return layout_notes([TensorRef(0, "float32", shape, stride)], [wanted])


SILENT = {
    "the same": (ROWS, ROWS),
    "the same view": (torch.empty(8, 6).t(), torch.empty(8, 6).t()),
    "contiguous for a transposed view": (ROWS, torch.empty(8, 6).t()),
    "contiguous for part of a buffer": (ROWS, torch.empty(6, 16)[:, ::2]),
    "contiguous for an expanded view": (ROWS, torch.empty(6, 1).expand(6, 8)),
    "contiguous for permuted images": (IMAGE, torch.empty(2, 4, 3, 5).transpose(1, 2)),
    "both channels last": (IMAGE.contiguous(memory_format=LAST), IMAGE.contiguous(memory_format=LAST)),
    "strides of axes of size 1": (torch.empty(2, 3, 1, 1).contiguous(memory_format=LAST), torch.empty(2, 3, 1, 1)),
    "one channel": (torch.empty(2, 1, 4, 5), torch.empty(2, 1, 4, 5).contiguous(memory_format=LAST)),
    "nothing in it": (torch.empty(0, 8), torch.empty(8, 0).t()),
    "a scalar": (torch.empty(()), torch.empty(())),
}
SAID = {
    "transposed": (torch.empty(8, 6).t(), ROWS, "`.contiguous()`"),
    "padded rows": (torch.empty(6, 16)[:, :8], ROWS, "`.contiguous()`"),
    "every second element": (torch.empty(16)[::2], torch.empty(8), "`.contiguous()`"),
    "another transposition": (torch.empty(3, 2, 4).transpose(0, 1), torch.empty(2, 4, 3).transpose(1, 2), "`.contiguous()`"),
    "channels last": (IMAGE.contiguous(memory_format=LAST), IMAGE, "`.contiguous()`"),
    "not channels last": (IMAGE, IMAGE.contiguous(memory_format=LAST), "`.contiguous(memory_format=torch.channels_last)`"),
    "volumes": (
        VOLUME,
        VOLUME.contiguous(memory_format=torch.channels_last_3d),
        "`.contiguous(memory_format=torch.channels_last_3d)`",
    ),
}


@pytest.mark.parametrize(("own", "reference"), SILENT.values(), ids=SILENT.keys())
def test_a_layout_that_every_caller_can_use_is_not_mentioned(own, reference):
    assert notes(own, reference) == []


@pytest.mark.parametrize(("own", "reference", "fix"), SAID.values(), ids=SAID.keys())
def test_another_layout_is_named_with_the_fix(own, reference, fix):
    (note,) = notes(own, reference)
    assert note.startswith(f"Output 0 has the strides {list(own.stride())}, and the reference's {list(reference.stride())}:")
    assert note.endswith(f"return {fix}.")


def test_outputs_are_counted():
    refs = [TensorRef(i, "float32", (6, 8), stride) for i, stride in enumerate([(8, 1), (1, 6)])]
    (note,) = layout_notes(refs, [TensorSpec("float32", (6, 8), (8, 1))] * 2)
    assert note.startswith("Output 1 ")
