import torch
import torch.nn as nn

bs, chs, rd, res = 128, 384, 16, 56


class SqueezeExcite(nn.Module):
    def __init__(self, chs, rd_chs):
        super().__init__()
        self.conv_reduce = nn.Conv2d(chs, rd_chs, 1, bias=True)
        self.act1 = nn.SiLU(inplace=True)
        self.conv_expand = nn.Conv2d(rd_chs, chs, 1, bias=True)

    def forward(self, x):
        x_se = x.mean((2, 3), keepdim=True)
        x_se = self.conv_reduce(x_se)
        x_se = self.act1(x_se)
        x_se = self.conv_expand(x_se)
        return x * x_se.sigmoid()


class Model(nn.Module):
    def __init__(self, chs, rd_chs):
        super().__init__()
        self.dw = nn.Conv2d(chs, chs, 5, stride=1, padding=2, groups=chs, bias=False)
        self.se = SqueezeExcite(chs, rd_chs)

    def forward(self, x):
        return self.se(torch.nn.functional.silu(self.dw(x)))


def get_inputs():
    return [torch.randn(bs, chs, res, res)]


def get_init_inputs():
    return [chs, rd]
