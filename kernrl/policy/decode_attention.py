"""Attention of one new token a row over keys and values that are kept in place: what a captured decoding step needs.

Handed to a model's forward as the keyword argument `kv` (see `kernrl.policy.attention`), so that no cache of transformers
takes part: the shapes never change, and the column that is written is read from device memory.
"""

from __future__ import annotations

import functools
from itertools import chain

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kernrl.kernels.launch import Variant

NO_COLUMN = 2**30
"""As a row's start: it attends to its own new token alone, and costs next to nothing."""

LOG2_E = 1.4426950408889634

TILE_BYTES = 8192
"""Keys loaded at once: three such tiles of keys and of values are 48 KiB, which lets four programs share a multiprocessor."""


class KVCache:
    """Keys and values of every layer for the rows of a batch; column c holds the token at place c of every padded row.

    Layers are allocated when the prompts are read, as only the model's attention knows their shapes.

    Attributes:
        starts: int64 [B], the first column that a row attends to: padding on the left ends there.
        position: int64 [1], the column of the token that is decoded.
    """

    def __init__(self, rows: int, capacity: int, device: torch.device):
        self.rows, self.capacity = rows, capacity
        self.starts = torch.full((rows,), NO_COLUMN, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._prompt_of: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return sum(keys.nbytes + values.nbytes for keys, values in self._layers.values())

    def read(self, prompt_of: Tensor | None) -> None:
        """While `prompt_of` (int64 [n]) is set, forwards read prompts: the first n rows take the keys of those prompts."""
        self._prompt_of = prompt_of

    def grow(self, capacity: int) -> None:
        """Make room for more columns, layer by layer: addresses change, contents do not."""
        for layer, kept in self._layers.items():
            pair = keys, values = self._empty(kept[0], capacity), self._empty(kept[1], capacity)
            for old, new in zip(kept, (keys, values), strict=True):
                new[:, :, : self.capacity] = old
            self._layers[layer] = pair
        self.capacity = capacity

    def keep(self, rows: Tensor, columns: int) -> None:
        """Make these rows, int64 [n] ascending, the first n, with what their first `columns` columns hold."""
        self.starts[: len(rows)] = self.starts[rows]
        for kept in chain.from_iterable(self._layers.values()):
            kept[: len(rows), :, :columns] = kept[rows, :, :columns]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor | None:
        """Keep the keys and values, and attend; None while prompts are read, which attend as ever.

        Args:
            query: [B, H, 1, D]; key, value: [B, H_kv, 1, D], H a multiple of H_kv. On a CPU, B may be less than `rows`: they
                are the first B.

        Returns:
            [B, 1, H, D]
        """
        if self._prompt_of is not None:
            if layer not in self._layers:
                self._layers[layer] = self._empty(key, self.capacity), self._empty(value, self.capacity)
            for kept, read in zip(self._layers[layer], (key, value), strict=True):
                kept[: len(self._prompt_of), :, : read.shape[2]] = read[self._prompt_of]
            return None
        keys, values = self._layers[layer]
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        attend = attend_in_one_kernel if query.is_cuda else attend_by_sdpa
        return attend(query, key, value, keys, values, self.starts, self.position, scale)

    def _empty(self, like: Tensor, capacity: int) -> Tensor:
        return like.new_empty(self.rows, like.shape[1], capacity, like.shape[3])


def attend_by_sdpa(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, starts: Tensor, position: Tensor, scale: float
) -> Tensor:
    """What the kernel computes, in PyTorch: for CPUs. Arguments as there; `keys`, `values` and `starts` may have more rows."""
    (rows, heads, _, dim), kv_heads, last = query.shape, key.shape[1], int(position)
    keys[:rows, :, last], values[:rows, :, last] = key[:, :, 0], value[:, :, 0]
    columns = torch.arange(last + 1, device=query.device)
    seen = (columns >= starts[:rows, None]) | (columns == last)
    keys, values = keys[:rows, :, : last + 1], values[:rows, :, : last + 1]
    # the query heads of a key head as so many queries: its keys are read once for all of them
    query = query.reshape(rows, kv_heads, heads // kv_heads, dim)
    out = scaled_dot_product_attention(query, keys, values, seen[:, None, None], scale=scale)
    return out.reshape(rows, 1, heads, dim)


@triton.jit
def _decode_kernel(
    query_ptr, key_ptr, value_ptr, keys_ptr, values_ptr, starts_ptr, position_ptr, out_ptr, capacity, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr,
    GROUP_BLOCK: tl.constexpr, DIM_BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0).to(tl.int64)  # a row's key head
    position = tl.load(position_ptr).to(tl.int32)
    start = tl.load(starts_ptr + pair // KV_HEADS).to(tl.int32)
    group, dims = tl.arange(0, GROUP_BLOCK), tl.arange(0, DIM_BLOCK)
    in_dim = dims < DIM
    heads_at = (pair * GROUP + group)[:, None] * DIM + dims[None, :]
    in_heads = (group < GROUP)[:, None] & in_dim[None, :]
    query = tl.load(query_ptr + heads_at, mask=in_heads, other=0.0)
    key = tl.load(key_ptr + pair * DIM + dims, mask=in_dim, other=0.0)
    value = tl.load(value_ptr + pair * DIM + dims, mask=in_dim, other=0.0)
    first = pair * capacity * DIM
    tl.store(keys_ptr + first + position * DIM + dims, key, mask=in_dim)
    tl.store(values_ptr + first + position * DIM + dims, value, mask=in_dim)

    # the new token comes first, from registers, so that nothing that was stored here is read again
    top = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], axis=1) * scale
    total = tl.full([GROUP_BLOCK], 1.0, tl.float32)
    out = tl.zeros([GROUP_BLOCK, DIM_BLOCK], tl.float32) + value.to(tl.float32)[None, :]
    for tile in range(start, position, TILE):
        columns = tile + tl.arange(0, TILE)
        live = columns < position
        at = first + columns[:, None] * DIM + dims[None, :]
        inside = live[:, None] & in_dim[None, :]
        keys = tl.load(keys_ptr + at, mask=inside, other=0.0)
        values = tl.load(values_ptr + at, mask=inside, other=0.0)
        scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
        scores = tl.where(live[None, :], scores, float("-inf"))
        highest = tl.maximum(top, tl.max(scores, axis=1))
        shrink = tl.exp2(top - highest)
        weights = tl.exp2(scores - highest[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        out = out * shrink[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        top = highest
    tl.store(out_ptr + heads_at, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=in_heads)


def attend_in_one_kernel(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, starts: Tensor, position: Tensor, scale: float
) -> Tensor:
    """Write `key` and `value` at column `position`, and attend to the columns from `starts` to it.

    A program has a row's query heads of one key head, so each key is read once, and only the columns that count.

    Args:
        query: [B, H, 1, D]; key, value: [B, H_kv, 1, D]; keys, values: contiguous [B, H_kv, capacity, D], in one dtype.
        starts: int64 [B]; position: int64 [1].
        scale: of the scores.

    Returns:
        [B, 1, H, D]
    """
    (rows, heads, _, dim), kv_heads, capacity = query.shape, key.shape[1], keys.shape[2]
    query, key, value = (x.contiguous() for x in (query, key, value))
    out = query.new_empty(rows, 1, heads, dim)
    kernel = _variant(kv_heads, heads // kv_heads, dim, keys.element_size())
    kernel(rows * kv_heads, (query, key, value, keys, values, starts, position, out), (capacity,), (scale * LOG2_E,))
    return out


@functools.cache
def _variant(kv_heads: int, group: int, dim: int, itemsize: int) -> Variant:
    # a block of a matrix product has 16 rows at least
    group_block, dim_block = (max(16, triton.next_power_of_2(size)) for size in (group, dim))
    constants = {
        "KV_HEADS": kv_heads, "GROUP": group, "DIM": dim,
        "GROUP_BLOCK": group_block, "DIM_BLOCK": dim_block, "TILE": max(16, TILE_BYTES // (dim_block * itemsize)),
    }  # fmt: skip
    return Variant(_decode_kernel, constants, num_warps=4, num_stages=3)
