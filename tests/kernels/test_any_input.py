"""The public losses for any input that hypothesis draws; `tests/gpu/test_any_input_gpu.py` does the same on a GPU."""

import os

import pytest
import torch
from support import EXHAUSTIVE, interpreted
from support.drawn_losses import LOSSES, Place, check_any

torch.set_num_threads(1)
# As many as a second or two of CPU time draw. Of those from hidden states few have rows that are clipped.
EXAMPLES = {loss: 24 if loss == "any_loss_from_hidden_states" else 8 for loss in LOSSES}


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_plain_pytorch(loss):
    check_any(loss, Place(kernels=False), examples=150 if EXHAUSTIVE else 50)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="starts a process that interprets")
@pytest.mark.parametrize("loss", LOSSES)
def test_kernels_in_the_interpreter(loss):
    [examples] = interpreted.ask("interpreted_losses", [[loss, 100 if EXHAUSTIVE else EXAMPLES[loss]]])
    assert examples > 0
