"""Attention over packed documents: many sequences in one row, none of which attends to another.

Registered with transformers as the attention implementation `kernrl_varlen`, so any model of the hub that supports
attention backends can be trained on packed rows, and decode one token a row over a `KVCache` (`kv`). With neither, as in
transformers' `generate`, it is plain SDPA.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kernrl.policy.decode_attention import KVCache

VARLEN = "kernrl_varlen"


def packed_kwargs(position_ids: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> dict[str, Any]:
    """Keyword arguments that make a model's forward attend within documents only.

    Args:
        position_ids: int64 [1, N], restarting at 0 in every document.
        cu_seqlens: int32 [D + 1], where document d is tokens `cu_seqlens[d] : cu_seqlens[d + 1]`; starts at 0, ends at N.
        max_seqlen: an upper bound on the documents' lengths, in tokens.
    """
    # transformers passes a 4-D mask on unchanged; this one is never read, and keeps it from building one of [N, N]
    unused_mask = torch.empty(1, 1, 1, 1, dtype=torch.bool, device=position_ids.device)
    return {
        "position_ids": position_ids,
        "attention_mask": unused_mask,
        "cu_seqlens": cu_seqlens,
        "max_seqlen": max_seqlen,
        "use_cache": False,
    }


def decode_kwargs(position_ids: Tensor, kv: KVCache, mask: Tensor | None = None) -> dict[str, Any]:
    """Keyword arguments that make a model's forward keep its keys and values in `kv`.

    Args:
        position_ids: int64 [B, T], counted in each row from its first token that is no padding.
        mask: [B, T], which tokens of prompts are no padding; None to decode: T is 1.
    """
    if mask is None:  # of four dimensions, as in `packed_kwargs`
        mask = torch.empty(1, 1, 1, 1, dtype=torch.bool, device=position_ids.device)
    return {"position_ids": position_ids, "attention_mask": mask, "kv": kv, "use_cache": False}


def varlen_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    kv: KVCache | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Causal attention of packed documents, or of new tokens over those in `kv`.

    Args:
        query: [1, H, N, head_dim]; key, value: [1, H_kv, N, head_dim], H a multiple of H_kv.
        cu_seqlens, max_seqlen: see `packed_kwargs`; None for an ordinary padded batch.
        kv: see `decode_kwargs`.

    Returns:
        [1, N, H, head_dim], and None in place of attention weights.

    Raises:
        ValueError: `kv` is given, and the layer attends in a way that its kernel does not know.
    """
    if kv is not None:
        if any(kwargs.get(name) is not None for name in ("sliding_window", "softcap", "s_aux", "position_bias")):
            raise ValueError("decoding over a KVCache attends to all earlier tokens alike")
        if (out := kv.attend(module.layer_idx, query, key, value, scaling)) is not None:  # pyright: ignore[reportArgumentType]
            return out, None
    if cu_seqlens is None:
        out, _ = sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
        return out, None
    assert max_seqlen is not None
    if torch.is_autocast_enabled(query.device.type):
        # rotary embeddings leave queries and keys in float32, for which there is no varlen kernel
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return flash_attention(query, key, value, cu_seqlens, max_seqlen, scaling), None
    return attention_by_document(query, key, value, cu_seqlens, scaling), None


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, max_seqlen: int, scaling: float | None
) -> Tensor:
    """By torch's varlen kernel: for half precision on a GPU. Shapes as in `varlen_attention`."""
    from torch.nn.attention.varlen import varlen_attn

    # varlen kernels take [N, H, head_dim]; all releases of them accept equal head counts
    groups = query.shape[1] // key.shape[1]
    q, k, v = (t[0].transpose(0, 1) for t in (query, key, value))
    if groups > 1:
        k, v = (t.repeat_interleave(groups, dim=1) for t in (k, v))
    out = varlen_attn(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, scale=scaling, window_size=(-1, 0))
    assert isinstance(out, Tensor)
    return out[None]


def attention_by_document(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, scaling: float | None) -> Tensor:
    """Each document by itself: for CPUs and float32."""
    bounds = cu_seqlens.tolist()
    pieces = [
        scaled_dot_product_attention(
            query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], is_causal=True, scale=scaling, enable_gqa=True
        )
        for a, b in pairwise(bounds)
        if b > a
    ]
    return torch.cat(pieces, dim=2).transpose(1, 2)


AttentionInterface.register(VARLEN, varlen_attention)
AttentionMaskInterface.register(VARLEN, sdpa_mask)
