"""Which tasks train and which examine: decided by op composition, so that no seed can leak one into the other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

TRAIN, VALIDATION, HELDOUT = "train", "validation", "heldout"
SPLITS = (TRAIN, VALIDATION, HELDOUT)


def split_of(composition: Sequence[str]) -> str:
    """`train` (80 %), `validation` (10 %) or `heldout` (10 %), by a stable hash of the op sequence.

    Shapes, numbers and spellings play no part: two tasks of one composition are always on the same side.
    """
    digest = hashlib.sha256("/".join(composition).encode()).digest()
    share = int.from_bytes(digest[:8], "big") / 2**64
    return TRAIN if share < 0.8 else VALIDATION if share < 0.9 else HELDOUT
