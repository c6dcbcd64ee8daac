"""How much of a GPU's memory a process may take: by its share of a plan, so that no other process runs out because of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import torch

from kernrl.verifier.base.compat import set_allocator

WHOLE_BLOCKS_MB = 256
"""Cached blocks from this size on are handed out whole or not at all: a small tensor in a large block would keep all of it."""


def keep_large_blocks_whole() -> None:
    """For this process, before it allocates. Not where graphs are captured: a graph's blocks cannot be given back, so its
    smaller tensors must be able to use its larger blocks."""
    with contextlib.suppress(RuntimeError, AttributeError):  # without it, more memory is cached than is needed
        set_allocator(f"max_split_size_mb:{WHOLE_BLOCKS_MB}")


def limit_gpu_memory(nbytes: float | None, forget: Callable[[], None]) -> None:
    """Limit what torch may take in this process, cached blocks included; None: all that is free. `forget` drops what is kept,
    for when that is more already.

    At the limit, torch gives cached blocks back before it raises OutOfMemoryError, and cuDNN tries algorithms that need less.
    """
    if nbytes is not None and torch.cuda.memory_reserved() > nbytes:
        torch.cuda.empty_cache()
        if torch.cuda.memory_reserved() > nbytes:
            forget()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if nbytes is None else min(1.0, max(0.0, nbytes) / total))
