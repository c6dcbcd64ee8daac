# habit: Position ids and a mask that the task expands, read by their strides.
# task: position_table
import torch
import triton
import triton.language as tl


@triton.jit
def add_positions(x, ids, mask, table, y, S, H, sib, sis, smb, smh, sms, D: tl.constexpr, BLOCK: tl.constexpr):
    s, bh = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    d = tl.arange(0, BLOCK)
    row = (bh * S + s) * D + d
    v = tl.load(x + row, mask=d < D)
    t = tl.load(table + tl.load(ids + b * sib + s * sis) * D + d, mask=d < D)
    drop = tl.load(mask + b * smb + h * smh + s * sms)
    tl.store(y + row, tl.where(drop, 0.0, v + t), mask=d < D)


class ModelNew(torch.nn.Module):
    def __init__(self, length, dim):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(length, dim))

    def forward(self, x, position_ids, mask):
        B, H, S, D = x.shape
        y = torch.empty_like(x)
        add_positions[(S, B * H)](x, position_ids, mask, self.table, y, S, H, *position_ids.stride(), *mask.stride(), D=D,
                                  BLOCK=triton.next_power_of_2(D))
        return y
