# habit: tl.topk of keys that hold a number and its place in 64 bits.
# task: topk_gate
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gate_kernel(s_ptr, w_ptr, i_ptr, E, K: tl.constexpr, P: tl.constexpr):
    row = tl.program_id(0)
    e = tl.arange(0, P)
    s = tl.load(s_ptr + row * E + e, mask=e < E, other=float("-inf"))
    bits = s.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)
    key = (ordered << 32) | (P - 1 - e).to(tl.int64)
    key = tl.where(e < E, key, -9223372036854775808)
    top = tl.topk(key, K)
    place = P - 1 - (top & 0xFFFFFFFF)
    high = (top >> 32).to(tl.int32)
    value = tl.where(high < 0, high ^ 0x7FFFFFFF, high).to(tl.float32, bitcast=True)
    k = tl.arange(0, K)
    tl.store(w_ptr + row * K + k, tl.softmax(value))
    tl.store(i_ptr + row * K + k, place)


class ModelNew(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, scores):
        rows, e = scores.shape
        weights = scores.new_empty(rows, self.k)
        places = torch.empty(rows, self.k, dtype=torch.int64, device=scores.device)
        gate_kernel[(rows,)](scores, weights, places, e, K=self.k, P=triton.next_power_of_2(e))
        return weights, places
