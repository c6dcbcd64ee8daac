"""Token ids outside the vocabulary, found on the GPU without stopping it.

A kernel that meets such an id at an active position makes that token's outputs NaN and raises a flag in device
memory; reading the flag waits for the GPU, so a trainer calls `check_ids` once a step. On a CPU the ops raise at once.
"""

import torch

from kernrl.errors import UsageError

_flags: dict[torch.device, torch.Tensor] = {}


def invalid_id_flag(device: torch.device) -> torch.Tensor:
    """The int32 [1] flag of `device`; kernels store 1 there."""
    if device not in _flags:
        _flags[device] = torch.zeros(1, dtype=torch.int32, device=device)
    return _flags[device]


def check_ids() -> None:
    """Raise `UsageError` if any op since the last call met an id outside the vocabulary. Waits for the GPU."""
    met = [device for device, flag in _flags.items() if flag.item()]
    for device in met:
        _flags[device].zero_()
    if met:
        raise UsageError(f"action_ids held an id outside the vocabulary at an active position on {met[0]}; mask it out")


def require_valid_ids(ids: torch.Tensor, mask: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """`ids` with masked ones set to 0; raises `UsageError` at once if an active one is out of range (CPU path)."""
    invalid = (ids < 0) | (ids >= vocab_size)
    if mask is not None:
        invalid = invalid & mask
        ids = ids.where(mask, 0)
    if invalid.any():
        raise UsageError(f"action_ids holds an id outside [0, {vocab_size}) at an active position; mask it out")
    return ids
