import torch
import torch.nn as nn

batch_size, dim = 32, 192
resolution = 56


class Model(nn.Module):
    r""" ConvNeXt-style block.
    DwConv -> Permute to (N, H, W, C) -> LayerNorm (channels_last) -> Linear -> GELU -> Linear -> scale -> Permute back

    Args:
        dim (int): Number of input channels.
        layer_scale_init_value (float): Init value for Layer Scale.
    """

    def __init__(self, dim, layer_scale_init_value=1e-1):
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim)  # depthwise conv
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(layer_scale_init_value * torch.ones((dim)))

    def forward(self, x):
        input = x
        x = self.dwconv(x)
        x = x.permute(0, 2, 3, 1)  # (N, C, H, W) -> (N, H, W, C)
        x = self.norm(x)
        x = self.pwconv1(x)
        x = self.act(x)
        x = self.pwconv2(x)
        x = self.gamma * x
        x = x.permute(0, 3, 1, 2)  # (N, H, W, C) -> (N, C, H, W)
        return input + x


def get_inputs():
    return [torch.randn(batch_size, dim, resolution, resolution)]


def get_init_inputs():
    return [dim]
