# habit: Tokens are sorted into blocks of experts, and programs beyond the last block return.
# task: expert_mlp
from __future__ import annotations

import functools
import json
import os
from typing import Any

import torch
import triton
import triton.language as tl

_CONFIG_FOLDER = os.environ.get("FUSED_MOE_CONFIG_FOLDER", None)


def ceil_div(a, b):
    return (a + b - 1) // b


@triton.jit
def moe_align_block_size_kernel(topk_ids, sorted_token_ids, expert_ids, num_tokens_post_pad, numel, total,
                                num_experts: tl.constexpr, block_size: tl.constexpr, BLOCK: tl.constexpr):
    # one program: count, pad, place
    i = tl.arange(0, BLOCK)
    m = i < numel
    ids = tl.load(topk_ids + i, mask=m, other=num_experts).to(tl.int32)
    start = 0
    for e in tl.static_range(num_experts):
        mine = (ids == e).to(tl.int32)
        rank = tl.cumsum(mine, 0) - mine
        count = tl.sum(mine, 0)
        padded = tl.cdiv(count, block_size) * block_size
        tl.store(sorted_token_ids + start + rank, i, mask=mine != 0)
        for b in range(0, tl.cdiv(count, block_size)):
            tl.store(expert_ids + start // block_size + b, e)
        start += padded
    tl.store(num_tokens_post_pad, start)


@triton.jit
def fused_moe_kernel(
    a_ptr, b_ptr, c_ptr, topk_weights_ptr, sorted_token_ids_ptr, expert_ids_ptr, num_tokens_post_padded_ptr,
    N, K, EM, num_valid_tokens, stride_am, stride_ak, stride_be, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    MUL_ROUTED_WEIGHT: tl.constexpr, top_k: tl.constexpr, compute_type: tl.constexpr,
):
    pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(EM, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_SIZE_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
    pid_m = first_pid_m + ((pid % num_pid_in_group) % group_size_m)
    pid_n = (pid % num_pid_in_group) // group_size_m
    num_tokens_post_padded = tl.load(num_tokens_post_padded_ptr)
    if pid_m * BLOCK_SIZE_M >= num_tokens_post_padded:
        return
    offs_token_id = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M).to(tl.int64)
    offs_token = tl.load(sorted_token_ids_ptr + offs_token_id)
    token_mask = offs_token < num_valid_tokens
    off_experts = tl.load(expert_ids_ptr + pid_m).to(tl.int64)
    offs_bn = (pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N).to(tl.int64)) % N
    offs_k = tl.arange(0, BLOCK_SIZE_K)
    a_ptrs = a_ptr + (offs_token[:, None] // top_k * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + off_experts * stride_be + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
        a = tl.load(a_ptrs, mask=token_mask[:, None] & (offs_k[None, :] < K - k * BLOCK_SIZE_K), other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_SIZE_K, other=0.0)
        accumulator += tl.dot(a, b, input_precision="ieee")
        a_ptrs += BLOCK_SIZE_K * stride_ak
        b_ptrs += BLOCK_SIZE_K * stride_bk
    if MUL_ROUTED_WEIGHT:
        moe_weight = tl.load(topk_weights_ptr + offs_token, mask=token_mask, other=0)
        accumulator = accumulator * moe_weight[:, None]
    accumulator = accumulator.to(compute_type)
    offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
    c_ptrs = c_ptr + stride_cm * offs_token[:, None] + stride_cn * offs_cn[None, :]
    c_mask = token_mask[:, None] & (offs_cn[None, :] < N)
    tl.store(c_ptrs, accumulator, mask=c_mask)


@triton.jit
def silu_and_mul_kernel(x_ptr, out_ptr, d, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for start in range(0, d, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        a = tl.load(x_ptr + row * 2 * d + cols, mask=cols < d, other=0.0)
        b = tl.load(x_ptr + row * 2 * d + d + cols, mask=cols < d, other=0.0)
        tl.store(out_ptr + row * d + cols, a / (1 + tl.exp(-a)) * b, mask=cols < d)


def moe_align_block_size(topk_ids: torch.Tensor, block_size: int, num_experts: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    max_num_tokens_padded = topk_ids.numel() + num_experts * (block_size - 1)
    sorted_ids = torch.empty((max_num_tokens_padded,), dtype=torch.int32, device=topk_ids.device)
    sorted_ids.fill_(topk_ids.numel())
    max_num_m_blocks = triton.cdiv(max_num_tokens_padded, block_size)
    expert_ids = torch.zeros((max_num_m_blocks,), dtype=torch.int32, device=topk_ids.device)
    num_tokens_post_pad = torch.empty((1), dtype=torch.int32, device=topk_ids.device)
    moe_align_block_size_kernel[(1,)](topk_ids, sorted_ids, expert_ids, num_tokens_post_pad, topk_ids.numel(), max_num_tokens_padded,
                                      num_experts, block_size, BLOCK=triton.next_power_of_2(topk_ids.numel()))
    return sorted_ids, expert_ids, num_tokens_post_pad


@functools.lru_cache
def get_moe_configs(E: int, N: int, dtype: str | None) -> dict[int, Any] | None:
    if _CONFIG_FOLDER is None:
        return None
    path = os.path.join(_CONFIG_FOLDER, f"E={E},N={N},dtype={dtype}.json")
    return {int(key): val for key, val in json.loads(path).items()}


def get_default_config(M: int, E: int) -> dict[str, int]:
    if M <= E:
        return {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 16, "GROUP_SIZE_M": 1}
    return {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 16, "GROUP_SIZE_M": 8}


def try_get_optimal_moe_config(w1_shape: tuple[int, ...], w2_shape: tuple[int, ...], top_k: int, dtype, M: int):
    E, _, N = w2_shape
    configs = get_moe_configs(E, N, dtype)
    if configs:
        return configs[min(configs.keys(), key=lambda x: abs(x - M))]
    return get_default_config(M, E)


def invoke_fused_moe_kernel(A, B, C, topk_weights, topk_ids, sorted_token_ids, expert_ids, num_tokens_post_padded,
                            mul_routed_weight: bool, top_k: int, config: dict[str, Any], compute_type: tl.dtype) -> None:
    assert topk_weights.stride(1) == 1
    assert sorted_token_ids.stride(0) == 1
    EM = sorted_token_ids.shape[0]
    if A.shape[0] < config["BLOCK_SIZE_M"]:
        EM = min(sorted_token_ids.shape[0], A.shape[0] * top_k * config["BLOCK_SIZE_M"])
    grid = lambda META: (triton.cdiv(EM, META["BLOCK_SIZE_M"]) * triton.cdiv(B.shape[1], META["BLOCK_SIZE_N"]),)
    fused_moe_kernel[grid](
        A, B, C, topk_weights, sorted_token_ids, expert_ids, num_tokens_post_padded, B.shape[1], B.shape[2], EM, topk_ids.numel(),
        A.stride(0), A.stride(1), B.stride(0), B.stride(2), B.stride(1), C.stride(1), C.stride(2),
        MUL_ROUTED_WEIGHT=mul_routed_weight, top_k=top_k, compute_type=compute_type, **config,
    )


class ModelNew(torch.nn.Module):
    def __init__(self, D, FF, E, topk):
        super().__init__()
        self.w1 = torch.nn.Parameter(torch.randn(E, 2 * FF, D) * D**-0.5)
        self.w2 = torch.nn.Parameter(torch.randn(E, D, FF) * FF**-0.5)
        self.topk = topk

    def forward(self, hidden_states, topk_ids, topk_weights):
        w1, w2 = self.w1, self.w2
        assert hidden_states.shape[1] == w1.shape[2], "Hidden size mismatch"
        assert topk_weights.shape == topk_ids.shape, "topk shape mismatch"
        M, _ = hidden_states.shape
        E, N, _ = w1.shape
        top_k = topk_ids.shape[1]
        config = try_get_optimal_moe_config(w1.shape, w2.shape, top_k, None, M)
        cache1 = torch.empty((M, top_k, N), device=hidden_states.device, dtype=hidden_states.dtype)
        cache2 = torch.empty((M * top_k, N // 2), device=hidden_states.device, dtype=hidden_states.dtype)
        cache3 = torch.empty((M, top_k, w2.shape[1]), device=hidden_states.device, dtype=hidden_states.dtype)
        sorted_token_ids, expert_ids, post = moe_align_block_size(topk_ids, config["BLOCK_SIZE_M"], E)
        compute_type = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[hidden_states.dtype]
        invoke_fused_moe_kernel(hidden_states, w1, cache1, topk_weights, topk_ids, sorted_token_ids, expert_ids, post,
                                False, top_k, config, compute_type)
        silu_and_mul_kernel[(M * top_k,)](cache1, cache2, N // 2, BLOCK=256)
        invoke_fused_moe_kernel(cache2, w2, cache3, topk_weights, topk_ids, sorted_token_ids, expert_ids, post,
                                True, 1, config, compute_type)
        return torch.sum(cache3.view(*cache3.shape), dim=1)
