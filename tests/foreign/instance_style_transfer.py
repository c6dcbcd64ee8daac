import torch
import torch.nn as nn

BATCH = 8
CH = 64
SIZE = 720


class ConvLayer(torch.nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size, stride):
        super(ConvLayer, self).__init__()
        self.conv2d = torch.nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding=kernel_size // 2)

    def forward(self, x):
        return self.conv2d(x)


class Model(torch.nn.Module):
    """down-sampling block of a fast style-transfer network"""

    def __init__(self, ch):
        super(Model, self).__init__()
        self.conv = ConvLayer(ch, 2 * ch, kernel_size=3, stride=2)
        self.in1 = torch.nn.InstanceNorm2d(2 * ch, affine=True)
        self.relu = torch.nn.ReLU()

    def forward(self, X):
        y = self.relu(self.in1(self.conv(X)))
        return y * 0.7 + 0.1


def get_inputs():
    return [torch.rand(BATCH, CH, SIZE, SIZE)]


def get_init_inputs():
    return [CH]
