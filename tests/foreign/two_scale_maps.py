import torch
import torch.nn as nn

NB = 18
INCH = 480
OUTCH = 224
S = 84


class Model(nn.Module):
    # fewer maps, each to mean 0 and variance 1 over the batch, negative half cut; also at a third of the size
    def __init__(self, inch, outch):
        super().__init__()
        self.select = nn.Conv2d(inch, outch, 1, bias=False)
        self.bn = nn.BatchNorm2d(outch, affine=False)

    def forward(self, maps):
        near = self.bn(self.select(maps)).relu_()
        far = nn.functional.avg_pool2d(near, 3)
        return near, far


def get_inputs():
    return [torch.randn(NB, INCH, S, S)]


def get_init_inputs():
    return [INCH, OUTCH]
