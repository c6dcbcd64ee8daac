import torch
import torch.nn as nn

class Model(nn.Module):
    """
    Convolution, tanhshrink, scaling by a constant, group normalization, log-softmax over channels.
    """
    def __init__(self, in_channels, out_channels, kernel_size, num_groups, scaling_factor):
        super(Model, self).__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.group_norm = nn.GroupNorm(num_groups, out_channels)
        self.scaling_factor = scaling_factor

    def forward(self, x):
        # Convolution
        x = self.conv(x)
        # Tanhshrink
        x = x - torch.tanh(x)
        # Scaling
        x = x * self.scaling_factor
        # Group normalization
        x = self.group_norm(x)
        # Log-softmax
        x = torch.log_softmax(x, dim=1)
        return x

batch_size = 64
in_channels = 32
out_channels = 80
height, width = 112, 112
kernel_size = 3
num_groups = 10
scaling_factor = 1.5

def get_inputs():
    return [torch.rand(batch_size, in_channels, height, width)]

def get_init_inputs():
    return [in_channels, out_channels, kernel_size, num_groups, scaling_factor]
