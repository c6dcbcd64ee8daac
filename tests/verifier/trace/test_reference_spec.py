"""References that cannot be traced are refused in one sentence that names what they do."""

import pytest

from kernrl.errors import UsageError
from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier.trace.reference_spec import reference_plan

SOURCE = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return {returned}


def get_inputs():
    return [torch.randn(8, 16)]


def get_init_inputs():
    return []
"""

FORWARDS = {
    "a size of its result": ("torch.bincount(x.long().flatten())", r"torch\.bincount returns without numbers"),
    "a size, by torch's own words": ("x[x.nonzero()[:, 0]]", r"torch\.nonzero returns without numbers"),
    "a size, given as a tensor": ("x.repeat_interleave(x[:, 0].long(), 0)", "repeat_interleave returns without numbers"),
    "the host": ("x * x.max().item()", r"reads a tensor's value on the host \(\.item\(\)\); the sizes"),
    "the host, within torch": ("torch.corrcoef(x)", r"on the host \(torch\.equal, or a check of torch's own\); the sizes"),
    "the host, in a window": (
        "torch.istft(torch.view_as_complex(x.view(1, 8, 8, 2)), 14, window=torch.ones(14))",
        r"on the host \(torch\.istft, which looks at its window's numbers\); the sizes",
    ),
}


@pytest.mark.parametrize("needing", FORWARDS)
def test_a_reference_that_depends_on_numbers_is_told_on_which(needing):
    returned, told = FORWARDS[needing]
    with pytest.raises(UsageError, match=f"cannot be traced: .*{told}") as caught:
        reference_plan(Task("t", SOURCE.format(returned=returned)), InputSet(FULL), "fp32", "sm_90")
    said = str(caught.value)
    assert said.endswith("must not depend on the numbers in tensors")
    assert len(said) < 220  # torch's own has 900


def test_what_is_no_tensor_is_named():
    with pytest.raises(UsageError, match="forward returns a float, not tensors"):
        reference_plan(Task("t", SOURCE.format(returned="x, 3.0")), InputSet(FULL), "fp32", "sm_90")


def test_a_transform_of_bfloat16_is_refused_with_what_to_do():
    source = SOURCE.format(returned="torch.fft.rfft(x).abs()")
    assert reference_plan(Task("t", source), InputSet(FULL), "fp32", "sm_90").outputs[0].shape == (8, 9)
    with pytest.raises(UsageError, match=r"torch\.fft has no BFloat16 numbers: leave --precision out, or cast in forward$"):
        reference_plan(Task("t", source), InputSet(FULL), "bf16", "sm_90")
    cast = SOURCE.format(returned="torch.fft.rfft(x.float()).abs().to(x.dtype)")
    assert reference_plan(Task("t", cast), InputSet(FULL), "bf16", "sm_90").outputs[0].dtype == "bfloat16"
