import torch
import torch.nn as nn

batch_size, coarse_ch, fine_ch, out_ch = 16, 96, 48, 64
fine = 160


class Model(nn.Module):
    """U-Net skip: concatenate, 1x1 convolution, instance norm, ReLU."""

    def __init__(self, coarse_ch, fine_ch, out_ch):
        super().__init__()
        self.fuse = nn.Conv2d(coarse_ch + fine_ch, out_ch, 1)
        self.norm = nn.InstanceNorm2d(out_ch)

    def forward(self, coarse, skip):
        return self.norm(self.fuse(torch.cat((coarse, skip), dim=1))).relu()


def get_inputs():
    return [torch.randn(batch_size, coarse_ch, fine, fine), torch.randn(batch_size, fine_ch, fine, fine)]


def get_init_inputs():
    return [coarse_ch, fine_ch, out_ch]
