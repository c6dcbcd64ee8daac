import torch
import torch.nn as nn

class Model(nn.Module):
    """
    Transposed convolution -> softplus -> sum over the height -> layer norm over the width -> times two
    """
    def __init__(self, in_channels, out_channels, kernel_size, stride, padding, out_width):
        super(Model, self).__init__()
        self.conv_transpose = nn.ConvTranspose2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)
        self.layer_norm = nn.LayerNorm(out_width)

    def forward(self, x):
        x = self.conv_transpose(x)
        x = nn.functional.softplus(x, beta=2.0)
        x = x.sum(dim=-2)
        x = self.layer_norm(x)
        return x + x


batch_size = 64
in_channels, out_channels = 48, 64
height, width = 128, 64
stride = 2
kernel_size = 4
padding = 1

def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]

def get_init_inputs():
    return [in_channels, out_channels, kernel_size, stride, padding, stride * width]
