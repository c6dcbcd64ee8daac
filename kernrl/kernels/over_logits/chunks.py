"""How many rows of logits to hold at a time."""

import math

from torch import Tensor

STATS_CHUNK_BYTES = 640 << 20  # of logits held at a time; 2048 rows of a vocabulary of 151,936 in bfloat16


def rows_per_chunk(n: int, weight: Tensor, chunk_rows: int | None, chunk_bytes: int = STATS_CHUNK_BYTES) -> int:
    """At most `chunk_rows`, or what `chunk_bytes` hold, evened out over the chunks that N rows take."""
    most = chunk_rows or max(128, chunk_bytes // (weight.shape[0] * weight.element_size()))
    each = math.ceil(n / math.ceil(max(1, n) / most))
    return max(16, math.ceil(each / 16) * 16)
