import torch
from torch import nn


class Model(nn.Module):
    """GCNet block.

    context modelling -> transform (1x1, LN, ReLU, 1x1) -> broadcast addition
    """

    def __init__(self, planes, ratio_planes):
        super().__init__()
        self.conv_mask = nn.Conv2d(planes, 1, kernel_size=1)
        self.channel_add_conv = nn.Sequential(
            nn.Conv2d(planes, ratio_planes, kernel_size=1),
            nn.LayerNorm([ratio_planes, 1, 1]),
            nn.ReLU(inplace=True),
            nn.Conv2d(ratio_planes, planes, kernel_size=1),
        )

    def spatial_pool(self, x):
        b, c, h, w = x.shape
        mask = self.conv_mask(x).view(b, 1, h * w)
        mask = torch.softmax(mask, dim=2)
        context = torch.matmul(x.view(b, c, h * w), mask.transpose(1, 2))
        return context.view(b, c, 1, 1)

    def forward(self, x):
        return x + self.channel_add_conv(self.spatial_pool(x))


batch = 32
planes = 256
ratio_planes = planes // 16
size = 100


def get_inputs():
    return [torch.randn(batch, planes, size, size)]


def get_init_inputs():
    return [planes, ratio_planes]
