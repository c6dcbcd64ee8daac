"""How `linear_grpo_loss` shares out its memory: rows of logits at a time, and the dtype of the weight gradient's sum."""

import pytest
import torch

from kernrl.kernels.linear import EXTRA_BYTES, _chunks

VOCAB = 151936


@pytest.mark.parametrize(
    ("n", "width", "dtype"),
    [
        (4096, 4096, torch.bfloat16),  # one chunk
        (8192, 1536, torch.float32),
        (16384, 2048, torch.float32),
        (8192, 3584, torch.bfloat16),
        (16384, 4096, torch.bfloat16),
        (32768, 4096, torch.float32),  # too many roundings
    ],
)
def test_a_gradient_keeps_within_its_memory(n, width, dtype):
    weight = torch.empty(VOCAB, width, dtype=torch.bfloat16, device="meta")
    rows, found = _chunks(n, weight, None, None)
    assert found == dtype
    sum_bytes = 2 * weight.numel() if dtype == torch.float32 else 0  # more than the gradient takes
    allowed = max(EXTRA_BYTES, 2 * sum_bytes) if n > 16384 else EXTRA_BYTES
    assert rows * VOCAB * 2 + sum_bytes <= allowed
    assert 2 * sum_bytes <= allowed  # rounding


@pytest.mark.parametrize("width", [1536, 4096])
def test_a_main_gradient_and_float32_need_no_sum_beside_them(width):
    weight = torch.empty(VOCAB, width, dtype=torch.bfloat16, device="meta")
    main = torch.empty(VOCAB, width, device="meta")
    rows, dtype = _chunks(32768, weight, main, None)
    assert (rows, dtype) == (4096, torch.float32)
    assert _chunks(32768, main, None, None) == (2048, torch.float32)


def test_rows_that_are_asked_for_are_kept():
    weight = torch.empty(VOCAB, 1536, dtype=torch.bfloat16, device="meta")
    assert _chunks(1000, weight, None, 100) == (112, torch.float32)
