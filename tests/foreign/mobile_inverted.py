import torch
import torch.nn as nn

IMAGES = 32
CHANNELS = 24
EXPANSION = 6
SIDE = 112


def conv_bn(inp, oup, k, groups=1):
    return nn.Sequential(
        nn.Conv2d(inp, oup, k, 1, k // 2, groups=groups, bias=False),
        nn.BatchNorm2d(oup),
    )


class Model(nn.Module):
    """Inverted residual, inference mode: expand, depthwise, project, add."""

    def __init__(self, channels, expansion):
        super().__init__()
        hidden = channels * expansion
        self.expand = conv_bn(channels, hidden, 1)
        self.dw = conv_bn(hidden, hidden, 3, groups=hidden)
        self.project = conv_bn(hidden, channels, 1)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                nn.init.normal_(m.running_mean, std=0.1)
                nn.init.uniform_(m.weight, 0.5, 1.5)
        self.eval()

    def forward(self, x):
        y = nn.functional.relu6(self.expand(x))
        y = nn.functional.relu6(self.dw(y))
        return x + self.project(y)


def get_inputs():
    return [torch.randn(IMAGES, CHANNELS, SIDE, SIDE)]


def get_init_inputs():
    return [CHANNELS, EXPANSION]
