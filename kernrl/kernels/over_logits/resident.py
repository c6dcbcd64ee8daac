"""The loss and its gradient in one read and one write of the logits: a row stays on chip between its two passes.

A softmax gradient needs each row twice, first for its sum and then for its gradient. Rows in flight on all SMs together
overflow the L2 cache, so a second read mostly goes to memory again: 3 transfers where 2 would do. Here one program holds
its whole row: SLOTS chunks in shared memory and HELD more in registers (a Qwen row of 151,936 bf16 logits is 304 KB; an
H100's SM has 227 KB and 256 KB of them). Chunks arrive by asynchronous copies that run ahead of the arithmetic, and one
row's second pass is the next row's first:

    slot by slot    store the gradient of this row's chunk, request the next row's chunk into its slot, and sum the chunk
                    of the next row that has arrived LAG slots behind
    then            store the gradients of the chunks held in registers; move the next row's first HELD chunks there, and
                    request its last HELD chunks into their slots; sum what is left of it

A row that is too long for one SM is shared by SHARERS programs, which hold a piece each and tell one another their sums.
Copies move 16 aligned bytes (a group), where a row may start anywhere: a piece is framed by the 128-byte lines that it touches,
and the elements of its first and last group, which it may share with its neighbours, are summed and stored one by one.

Where a mask leaves rows out, each program takes its share of the rows that count, wherever those are, and then fills its share
of the others with zeros.

Written in Gluon (Triton's lower level), because Triton cannot name shared memory; NVIDIA sm_90 and later. Everything else
uses the kernels of `vocab`, which share this one's mathematics through `row_math` and `token_math`.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from kernrl.kernels.launch import Launch, Variant, multiprocessors, scratch
from kernrl.kernels.over_logits.resident_kernel import _resident_kernel
from kernrl.kernels.over_tokens.token_loss import LossConfig


class Layout(NamedTuple):
    """How a row is held: by `sharers` programs, each with `slots` chunks in shared memory and `held` in registers."""

    chunk_bytes: int
    slots: int
    held: int
    lag: int
    warps: int
    programs_per_sm: int
    max_registers: int  # a thread
    sharers: int = 1


# The most slots and held chunks of each, for rows of growing length; chosen by sweep on an H200. Several programs an SM hide
# each other's waits where rows are short; a row that fills an SM has none to hide behind.
_SHORT = Layout(chunk_bytes=2048, slots=26, held=8, lag=4, warps=4, programs_per_sm=4, max_registers=128)
_MIDDLE = Layout(chunk_bytes=8192, slots=14, held=2, lag=4, warps=8, programs_per_sm=2, max_registers=128)
_LONG = Layout(chunk_bytes=8192, slots=28, held=10, lag=7, warps=16, programs_per_sm=1, max_registers=128)
LAYOUTS = (_SHORT, _MIDDLE, _LONG, _LONG._replace(sharers=2), _LONG._replace(sharers=4))
SHORTEST_ROW = 32768  # bytes; below, the second read of `vocab`'s kernel finds the row in the cache
GROUP_BYTES, LINE_BYTES = 16, 128


def piece_of_row(vocab: int, sharers: int) -> int:
    """Elements of a row that each of its programs holds; the last one may have fewer."""
    return vocab if sharers == 1 else -(-vocab // (64 * sharers)) * 64


def chunks_of_piece(vocab: int, layout: Layout, item_bytes: int) -> int:
    """The most chunks that a piece's frame touches."""
    aligned = vocab * item_bytes % LINE_BYTES == 0
    piece = piece_of_row(vocab, layout.sharers) * item_bytes + (0 if aligned else LINE_BYTES - item_bytes)
    return -(-piece // layout.chunk_bytes)


def layout_of_row(vocab: int, item_bytes: int = 2) -> Layout | None:
    """How to hold a row of `vocab` logits; None where it is too short to gain, or too long."""
    if vocab * item_bytes < SHORTEST_ROW:
        return None
    for layout in LAYOUTS:
        chunks = chunks_of_piece(vocab, layout, item_bytes)
        if chunks <= layout.slots + layout.held:
            slots = min(layout.slots, chunks)
            return layout._replace(slots=slots, held=chunks - slots)
    return None


def layout_for(logits: Tensor) -> Layout | None:
    """How to hold a row of `logits` [.., V] on chip; None where it does not fit or the GPU lacks what it takes."""
    if logits.dtype not in (torch.bfloat16, torch.float16, torch.float32) or logits.data_ptr() % GROUP_BYTES:
        return None
    return layout_of_row(logits.shape[-1], logits.element_size()) if _has_async_copies(logits.device) else None


@functools.cache
def _has_async_copies(device: torch.device) -> bool:
    return device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device)[0] >= 9


def _workspace(device: torch.device) -> tuple[Tensor, ...]:
    """(words, tags) of the groups of programs that share rows."""
    most = 4 * multiprocessors(device)
    return torch.zeros(4 * most, dtype=torch.int64, device=device), torch.zeros(most, dtype=torch.int32, device=device)


@functools.lru_cache(maxsize=1024)
def _variant(layout: Layout, config: LossConfig, aligned: bool, item_bytes: int) -> Variant:
    return Variant(
        _resident_kernel,
        {
            **config.constants, "ENTROPY_GRADIENT": config.entropy_coef != 0, "ALIGNED": aligned, "SHARERS": layout.sharers,
            "CHUNK": layout.chunk_bytes // item_bytes, "SLOTS": layout.slots, "HELD": layout.held, "LAG": layout.lag,
            "num_warps": layout.warps,
        },
        maxnreg=layout.max_registers,
        launch_cooperative_grid=layout.sharers > 1,  # programs wait for one another
    )  # fmt: skip


def loss_launch(layout: Layout, config: LossConfig, n: int, integers: tuple, floats: tuple, logits: Tensor) -> Launch:
    """The launch over the N rows of `logits`, with the arguments of `vocab`'s kernel, after whose tensors come `exchange`'s."""
    vocab = logits.shape[-1]
    groups = min(layout.programs_per_sm * multiprocessors(logits.device) // layout.sharers, n)
    variant = _variant(layout, config, vocab * logits.element_size() % LINE_BYTES == 0, logits.element_size())
    return Launch(variant, groups * layout.sharers, (n, *integers, piece_of_row(vocab, layout.sharers)), floats)


def exchange(variant: Variant, device: torch.device) -> tuple[Tensor | None, ...]:
    """The words and tags by which programs that share a row tell one another their sums."""
    sharers = variant.constants["SHARERS"]
    return scratch(_workspace, device, sharers) if sharers > 1 else (None, None)
