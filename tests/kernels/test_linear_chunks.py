"""How `linear_grpo_loss` shares out its memory: rows of logits at a time, and the dtype of the weight gradient's sum."""

import pytest
import torch

from kernrl.kernels.linear import EXTRA_BYTES, chunks_of

VOCAB = 151936


@pytest.mark.parametrize("width", [1536, 2048, 3584, 4096])
@pytest.mark.parametrize("n", [4096, 8192, 16384])
def test_a_few_chunks_keep_within_their_memory_with_a_rounded_sum(n, width):
    weight = torch.empty(VOCAB, width, dtype=torch.bfloat16, device="meta")
    rows, dtype = chunks_of(n, weight, None, None)
    assert dtype == torch.bfloat16
    assert rows * VOCAB * 2 <= EXTRA_BYTES


@pytest.mark.parametrize("width", [1536, 2048, 3584, 4096])
def test_many_chunks_are_summed_in_float32(width):
    weight = torch.empty(VOCAB, width, dtype=torch.bfloat16, device="meta")
    rows, dtype = chunks_of(32768, weight, None, None)
    assert dtype == torch.float32
    sum_bytes = 2 * weight.numel()  # more than the gradient takes; rounding takes as much again
    assert rows * VOCAB * 2 + sum_bytes <= max(EXTRA_BYTES, 2 * sum_bytes)


@pytest.mark.parametrize("width", [1536, 4096])
def test_a_main_gradient_and_float32_need_no_sum_beside_them(width):
    weight = torch.empty(VOCAB, width, dtype=torch.bfloat16, device="meta")
    main = torch.empty(VOCAB, width, device="meta")
    rows, dtype = chunks_of(32768, weight, main, None)
    assert (rows, dtype) == (4096, torch.float32)
    assert chunks_of(32768, main, None, None) == (2048, torch.float32)


def test_rows_that_are_asked_for_are_kept():
    weight = torch.empty(VOCAB, 1536, dtype=torch.bfloat16, device="meta")
    assert chunks_of(1000, weight, None, 100) == (112, torch.float32)
    assert chunks_of(1000, weight, None, 256) == (256, torch.bfloat16)
