import torch
import torch.nn as nn

UPSCALE = 3
CHANNELS = 64
LR_SIZE = 180
BATCH = 16


class Model(nn.Module):
    """ESPCN tail: convolution to r*r planes, pixel shuffle, a bias per image, clamp to [0, 1]"""

    def __init__(self, channels, upscale):
        super().__init__()
        self.conv = nn.Conv2d(channels, upscale ** 2, 3, padding=1)
        self.pixel_shuffle = nn.PixelShuffle(upscale)

    def forward(self, x, brightness):
        y = self.pixel_shuffle(torch.tanh(self.conv(x)))
        y = 0.5 * y + brightness.view(-1, 1, 1, 1)
        return y.clamp(0., 1.)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, LR_SIZE, LR_SIZE), torch.rand(BATCH)]


def get_init_inputs():
    return [CHANNELS, UPSCALE]
