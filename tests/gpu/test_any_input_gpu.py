"""The public losses on a GPU for any input that hypothesis draws, against float64."""

import pytest
import torch
from support import EXHAUSTIVE
from support.drawn_losses import LOSSES, Place, check_any

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]
# Beside short rows: those held on chip in float32, in 16 bits too, by two programs, and odd ones.
VOCABULARIES = (4096, 4099, 8192, 16384, 16391, 32768, 50257, 80001)


@pytest.mark.parametrize("loss", LOSSES)
def test_kernels(loss):
    place = Place(kernels=True, on_gpu=True, vocabularies=VOCABULARIES)
    check_any(loss, place, examples=1000 if EXHAUSTIVE else 200)
