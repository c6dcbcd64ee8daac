"""Attention of one query to keys and values in pages."""

import torch
import torch.nn as nn

INPUT_SETS = {"small": {"SEQS": 2, "D": 16, "PAGES": 2, "PAGE": 8}, "ragged": {"SEQS": 3, "D": 11, "PAGES": 3, "PAGE": 5, "MAX_PAGES": 7}}
SEQS = 16
HEADS = 8
KV_HEADS = 2
D = 64
PAGES = 128
PAGE = 16
MAX_PAGES = 8


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, q, k_cache, v_cache, block_tables, seq_lens):
        S, H, D = q.shape
        rep = H // k_cache.shape[2]
        k = k_cache[block_tables].flatten(1, 2).repeat_interleave(rep, dim=2)
        v = v_cache[block_tables].flatten(1, 2).repeat_interleave(rep, dim=2)
        scores = torch.einsum("shd,sthd->sht", q, k) * self.scale
        t = torch.arange(k.shape[1], device=q.device)
        scores = scores.masked_fill(t[None, None] >= seq_lens[:, None, None], float("-inf"))
        return torch.einsum("sht,sthd->shd", torch.softmax(scores, -1), v)


def get_inputs():
    return [
        torch.randn(SEQS, HEADS, D), torch.randn(PAGES, PAGE, KV_HEADS, D), torch.randn(PAGES, PAGE, KV_HEADS, D),
        torch.randint(0, PAGES, (SEQS, MAX_PAGES), dtype=torch.int32),
        torch.randint(1, MAX_PAGES * PAGE + 1, (SEQS,), dtype=torch.int32),
    ]


def get_init_inputs():
    return [0.004]
