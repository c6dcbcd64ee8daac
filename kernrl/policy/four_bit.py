"""Weights in 4 bits (QLoRA, Dettmers et al. 2023): frozen in NF4, under LoRA adapters that are trained in float32."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from kernrl.errors import UsageError

BLOCK, BLOCKS = 64, 256
"""Weights that share a scale of 8 bits, and scales that share one of 32: double quantisation."""

BYTES = 0.5 + 1 / BLOCK + 4 / (BLOCK * BLOCKS)
"""Bytes that a quantised weight takes: 0.516."""


def require_four_bit() -> None:
    """Raise UsageError where this machine cannot hold weights in 4 bits."""
    if find_spec("bitsandbytes") is None:
        raise UsageError("--load-in-4bit needs bitsandbytes: pip install 'kernrl[4bit]', or leave it out.")
    if not torch.cuda.is_available():
        raise UsageError("--load-in-4bit needs an NVIDIA GPU, and there is none here: leave it out.")


def four_bit_settings() -> dict[str, Any]:
    """What `from_pretrained` is told: every linear layer but the head in NF4, and products in bf16 on this process's GPU."""
    from transformers import BitsAndBytesConfig

    on_gpu = torch.cuda.is_available()
    quantised = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16 if on_gpu else torch.float32,
    )
    return {"quantization_config": quantised, "device_map": {"": torch.cuda.current_device() if on_gpu else "cpu"}}


def weights_in(parameter: Tensor) -> int:
    """How many weights a parameter holds: a quantised one has two in each byte."""
    state: Any = getattr(parameter, "quant_state", None)
    return parameter.numel() if state is None else state.shape.numel()
