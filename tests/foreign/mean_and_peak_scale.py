import torch
import torch.nn as nn

photos, chs, hidden, side = 120, 400, 20, 56


class ChannelScale(nn.Module):
    """One factor between 0 and 2 for each map, from its mean and its peak"""

    def __init__(self, chs, hidden):
        super().__init__()
        self.judge = nn.Linear(2 * chs, hidden)
        self.factor = nn.Linear(hidden, chs)

    def forward(self, y):
        seen = torch.cat([y.mean((2, 3)), y.amax((2, 3))], dim=1)
        factor = 1 + torch.tanh(self.factor(nn.functional.softsign(self.judge(seen))))
        return y * factor[..., None, None]


class Model(nn.Module):
    def __init__(self, chs, hidden):
        super().__init__()
        self.each = nn.Conv2d(chs, chs, 5, padding=2, groups=chs)
        self.scale = ChannelScale(chs, hidden)

    def forward(self, photo):
        return self.scale(torch.relu_(self.each(photo)))


def get_inputs():
    return [torch.randn(photos, chs, side, side)]


def get_init_inputs():
    return [chs, hidden]
