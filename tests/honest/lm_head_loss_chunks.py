# habit: Logits of a chunk of tokens at a time; a loss of no dimensions.
# task: lm_head_loss
"""Linear + cross entropy in chunks of tokens, so that the logits are never whole."""
from dataclasses import dataclass
from typing import NamedTuple, Optional

import torch
import torch.nn as nn
import triton
import triton.language as tl

MAX_FUSED_SIZE = 65536 // 2


class LossOutput(NamedTuple):
    loss: torch.Tensor
    z_loss: Optional[torch.Tensor] = None


@dataclass
class CrossEntropyConfig:
    ignore_index: int = -100
    label_smoothing: float = 0.0
    lse_square_scale: float = 0.0
    softcap: Optional[float] = None

    def __post_init__(self):
        assert 0.0 <= self.label_smoothing <= 1.0, f"label_smoothing must be in [0, 1], got: {self.label_smoothing}"


@triton.jit
def count_kept(labels, n_valid, n, ignore_index, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = 0
    for start in range(0, n, BLOCK):
        y = tl.load(labels + start + i, mask=start + i < n, other=ignore_index)
        total += tl.sum((y != ignore_index).to(tl.int32))
    tl.store(n_valid, total.to(tl.float32))


@triton.jit
def cross_entropy_kernel(
    X_ptr, X_stride, Y_ptr, Y_stride, loss_ptr, loss_stride, n_valid_ptr, n_cols, ignore_index,
    lse_square_scale: tl.constexpr, label_smoothing: tl.constexpr, softcap, BLOCK_SIZE: tl.constexpr, HAS_SOFTCAPPING: tl.constexpr,
):
    program_id = tl.program_id(0).to(tl.int64)
    Y_ptr += program_id * Y_stride
    y = tl.load(Y_ptr)
    X_ptr += program_id * X_stride
    loss_ptr += program_id * loss_stride
    if y == ignore_index:
        tl.store(loss_ptr, 0.0)
        return
    m = float("-inf")
    d = 0.0
    ori_X_y = tl.load(X_ptr + y).cast(tl.float32)
    if HAS_SOFTCAPPING:
        ori_X_y = softcap * (2 * tl.sigmoid(2 * ori_X_y / softcap) - 1)
    scaled_x_sum = 0.0
    eps = label_smoothing / n_cols
    for i in range(0, n_cols, BLOCK_SIZE):
        X_offsets = i + tl.arange(0, BLOCK_SIZE)
        X_block = tl.load(X_ptr + X_offsets, mask=X_offsets < n_cols, other=float("-inf")).cast(tl.float32)
        if HAS_SOFTCAPPING:
            X_block = softcap * (2 * tl.sigmoid(2 * X_block / softcap) - 1)
        block_max = tl.max(X_block)
        if label_smoothing > 0:
            scaled_x_sum += tl.sum(tl.where(X_offsets < n_cols, -eps * X_block, 0.0))
        m_new = tl.maximum(m, block_max)
        d = d * tl.exp(m - m_new) + tl.sum(tl.exp(X_block - m_new))
        m = m_new
    lse = m + tl.log(d)
    loss = lse - ori_X_y
    if label_smoothing > 0:
        smooth_loss = scaled_x_sum + label_smoothing * lse
        loss = loss * (1 - label_smoothing) + smooth_loss
    z_loss = lse_square_scale * lse * lse
    loss += z_loss
    loss = loss / tl.load(n_valid_ptr)
    tl.store(loss_ptr, loss)


class FusedLinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, _input, weight, target, config: CrossEntropyConfig):
        BT, H = _input.shape
        V = weight.shape[0]
        BLOCK_SIZE = min(MAX_FUSED_SIZE, triton.next_power_of_2(V))
        inc_factor = triton.cdiv(V, H)
        chunk_size = triton.next_power_of_2(triton.cdiv(BT, inc_factor))
        num_chunks = triton.cdiv(BT, chunk_size)
        loss_1d = torch.zeros(BT, dtype=torch.float32, device=_input.device)
        n_valid = torch.empty((), dtype=torch.float32, device=_input.device)
        count_kept[(1,)](target, n_valid, BT, config.ignore_index, BLOCK=1024)
        for chunk_id in range(num_chunks):
            start_idx = chunk_id * chunk_size
            end_idx = min((chunk_id + 1) * chunk_size, BT)
            _input_chunk = _input[start_idx:end_idx]
            logits_chunk = _input_chunk @ weight.t()
            target_chunk = target[start_idx:end_idx]
            n_rows = logits_chunk.shape[0]
            loss_1d_slice = loss_1d[start_idx:end_idx]
            logits_chunk = logits_chunk.contiguous()
            target_chunk = target_chunk.contiguous()
            cross_entropy_kernel[(n_rows,)](
                X_ptr=logits_chunk, X_stride=logits_chunk.stride(-2), Y_ptr=target_chunk, Y_stride=target_chunk.stride(-1),
                loss_ptr=loss_1d_slice, loss_stride=loss_1d_slice.stride(-1), n_valid_ptr=n_valid, n_cols=V,
                ignore_index=config.ignore_index, lse_square_scale=config.lse_square_scale,
                label_smoothing=config.label_smoothing, softcap=config.softcap, BLOCK_SIZE=BLOCK_SIZE,
                HAS_SOFTCAPPING=config.softcap is not None, num_warps=32,
            )
        loss = torch.sum(loss_1d)
        ctx.set_materialize_grads(False)
        return loss

    @staticmethod
    def backward(ctx, grad_output):
        raise NotImplementedError


class ModelNew(nn.Module):
    def __init__(self, hidden, vocab, ignore_index):
        super().__init__()
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.config = CrossEntropyConfig(ignore_index=ignore_index, label_smoothing=0.1)

    def forward(self, hidden_states, labels):
        out = LossOutput(FusedLinearCrossEntropy.apply(hidden_states, self.lm_head.weight, labels, self.config))
        return out.loss
