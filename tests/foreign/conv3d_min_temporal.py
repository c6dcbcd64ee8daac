import torch
import torch.nn as nn

class Model(nn.Module):
    """
    3D convolution, minimum over time, then CELU, an addition and a softmin over the width axis.
    """
    def __init__(self, in_channels, out_channels, kernel_size):
        super(Model, self).__init__()
        self.conv = nn.Conv3d(in_channels, out_channels, kernel_size, stride=(1, 2, 2))
        self.celu = nn.CELU(alpha=0.8)

    def forward(self, x):
        x = self.conv(x)
        x = torch.min(x, dim=2)[0]
        x = self.celu(x)
        x = x + 0.3
        return nn.functional.softmin(x, dim=3)

batch_size = 24
in_channels = 8
out_channels = 28
T, H, W = 16, 96, 128
kernel_size = (3, 5, 5)

def get_inputs():
    return [torch.rand(batch_size, in_channels, T, H, W)]

def get_init_inputs():
    return [in_channels, out_channels, kernel_size]
