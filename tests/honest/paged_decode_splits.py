# habit: Keys and values by a table of pages, in splits whose lengths are loaded.
# task: paged_decode
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cdiv_fn(x, y):
    return (x + y - 1) // y


@triton.jit
def _stage1(Q, K_Buffer, V_Buffer, sm_scale, Req_to_page, B_Seqlen, Att_Out, stride_tb, stride_qbs, stride_qh, stride_kp, stride_kt,
            stride_kh, stride_vp, stride_vt, stride_vh, stride_ob, stride_oh, stride_os, kv_group_num: tl.constexpr,
            BLOCK_D: tl.constexpr, BLOCK_N: tl.constexpr, NUM_KV_SPLITS: tl.constexpr, PAGE_SIZE: tl.constexpr, Lk: tl.constexpr):
    cur_batch = tl.program_id(0)
    cur_head = tl.program_id(1)
    split_kv_id = tl.program_id(2)
    cur_kv_head = cur_head // kv_group_num
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < Lk
    cur_len = tl.load(B_Seqlen + cur_batch)
    q = tl.load(Q + cur_batch * stride_qbs + cur_head * stride_qh + offs_d, mask=mask_d, other=0.0)
    kv_len_per_split = tl.cdiv(cur_len, NUM_KV_SPLITS)
    split_start = kv_len_per_split * split_kv_id
    split_end = tl.minimum(split_start + kv_len_per_split, cur_len)
    e_max = -1.0e30  # finite, as all scores of a split may be -inf
    e_sum = 0.0
    acc = tl.zeros([BLOCK_D], dtype=tl.float32)
    if split_end > split_start:
        for start_n in range(split_start, split_end, BLOCK_N):
            offs_n = start_n + tl.arange(0, BLOCK_N)
            kv_page = tl.load(Req_to_page + stride_tb * cur_batch + offs_n // PAGE_SIZE, mask=offs_n < split_end, other=0)
            in_page = offs_n % PAGE_SIZE
            offs_k = kv_page[:, None] * stride_kp + in_page[:, None] * stride_kt + cur_kv_head * stride_kh + offs_d[None, :]
            k = tl.load(K_Buffer + offs_k, mask=(offs_n[:, None] < split_end) & (mask_d[None, :]), other=0.0)
            qk = tl.sum(q[None, :] * k, 1)
            qk *= sm_scale
            qk = tl.where(offs_n < split_end, qk, float("-inf"))
            offs_v = kv_page[:, None] * stride_vp + in_page[:, None] * stride_vt + cur_kv_head * stride_vh + offs_d[None, :]
            v = tl.load(V_Buffer + offs_v, mask=(offs_n[:, None] < split_end) & (mask_d[None, :]), other=0.0)
            n_e_max = tl.maximum(tl.max(qk, 0), e_max)
            re_scale = tl.exp(e_max - n_e_max)
            p = tl.exp(qk - n_e_max)
            acc *= re_scale
            acc += tl.sum(p[:, None] * v, 0)
            e_sum = e_sum * re_scale + tl.sum(p, 0)
            e_max = n_e_max
        base = cur_batch * stride_ob + cur_head * stride_oh + split_kv_id * stride_os
        tl.store(Att_Out + base + offs_d, acc / tl.maximum(e_sum, 1e-30), mask=mask_d)
        tl.store(Att_Out + base + Lk, e_max + tl.log(e_sum))


@triton.jit
def _stage2(Mid_O, o, B_Seqlen, stride_mb, stride_mh, stride_ms, stride_ob, stride_oh, NUM_KV_SPLITS: tl.constexpr,
            BLOCK_D: tl.constexpr, Lv: tl.constexpr):
    cur_batch = tl.program_id(0)
    cur_head = tl.program_id(1)
    cur_len = tl.load(B_Seqlen + cur_batch)
    offs_d = tl.arange(0, BLOCK_D)
    mask_d = offs_d < Lv
    e_sum = 0.0
    e_max = -1.0e30  # finite, as all scores of a split may be -inf
    acc = tl.zeros([BLOCK_D], dtype=tl.float32)
    offs_v = cur_batch * stride_mb + cur_head * stride_mh + offs_d
    offs_logic = cur_batch * stride_mb + cur_head * stride_mh + Lv
    for split_kv_id in range(0, NUM_KV_SPLITS):
        kv_len_per_split = cdiv_fn(cur_len, NUM_KV_SPLITS)
        split_start = kv_len_per_split * split_kv_id
        split_end = tl.minimum(split_start + kv_len_per_split, cur_len)
        if split_end > split_start:
            tv = tl.load(Mid_O + offs_v + split_kv_id * stride_ms, mask=mask_d, other=0.0)
            tlogic = tl.load(Mid_O + offs_logic + split_kv_id * stride_ms)
            n_e_max = tl.maximum(tlogic, e_max)
            old_scale = tl.exp(e_max - n_e_max)
            acc *= old_scale
            exp_logic = tl.exp(tlogic - n_e_max)
            acc += exp_logic * tv
            e_sum = e_sum * old_scale + exp_logic
            e_max = n_e_max
    tl.store(o + cur_batch * stride_ob + cur_head * stride_oh + offs_d, acc / e_sum, mask=mask_d)


class ModelNew(nn.Module):
    num_kv_splits = 4

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, q, k_cache, v_cache, block_tables, seq_lens):
        S, H, D = q.shape
        _, page, kvh, _ = k_cache.shape
        o = q.new_empty(q.shape)
        attn_logits = torch.empty((S, H, self.num_kv_splits, D + 1), dtype=torch.float32, device=q.device)
        BLOCK_D = triton.next_power_of_2(D)
        _stage1[(S, H, self.num_kv_splits)](
            q, k_cache, v_cache, self.scale, block_tables, seq_lens, attn_logits, block_tables.stride(0), q.stride(0), q.stride(1),
            *k_cache.stride()[:3], *v_cache.stride()[:3], *attn_logits.stride()[:3], kv_group_num=H // kvh, BLOCK_D=BLOCK_D,
            BLOCK_N=16, NUM_KV_SPLITS=self.num_kv_splits, PAGE_SIZE=page, Lk=D, num_warps=4, num_stages=2,
        )
        _stage2[(S, H)](attn_logits, o, seq_lens, *attn_logits.stride()[:3], o.stride(0), o.stride(1),
                        NUM_KV_SPLITS=self.num_kv_splits, BLOCK_D=BLOCK_D, Lv=D)
        return o
