"""What checkpoints will take, before the run that writes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from kernrl.console import log
from kernrl.errors import UsageError
from kernrl.policy.four_bit import weights_in

ADAM_BYTES = 8
"""Two float32 moments for each weight that is trained."""

EXPORT_BYTES = 2
"""A weight of the final model, in bf16."""


def require_room(folder: Path, model: torch.nn.Module, *, kept: int, optimizer: bool, adapters: bool) -> None:
    """Say what a run will write, and refuse one whose disk cannot hold it.

    Args:
        folder: of the run.
        kept: checkpoints on disk at once, when a new one is complete and an old one not yet removed.
        optimizer: whether a checkpoint has the optimizer's state.
        adapters: whether it has the trained weights alone, as LoRA's do.

    Raises:
        UsageError: there is less room.
    """
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    written = [p for p in model.parameters() if p.requires_grad or not adapters]
    one = sum(p.numel() * p.element_size() for p in written) + ADAM_BYTES * trained * optimizer
    total = one * kept + EXPORT_BYTES * sum(weights_in(p) for p in model.parameters())
    there = sorted(map(_size, folder.glob("step_*")), reverse=True)  # of a run that goes on: each is removed for a new one
    free = shutil.disk_usage(folder).free + sum(min(one, size) for size in there[: kept - 1])
    said = f"checkpoints take {size_text(one)} each, and the run up to {size_text(total)}"
    if total > free:
        raise UsageError(f"--output {folder}: {said}, where {size_text(free)} are free; make room, or name another disk.")
    log.print(f"{said[0].upper()}{said[1:]}, in {folder}.", highlight=False, soft_wrap=True, markup=False)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def size_text(count: float) -> str:
    """A number of bytes as a person says it: `12 kB`, `223 MB`, `1.4 GB`."""
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e6 else f"{count / 1e3:.0f} kB"
