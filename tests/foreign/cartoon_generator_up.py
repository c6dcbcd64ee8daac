import torch
import torch.nn as nn


class GatedUp(nn.Module):
    '''k4 s2 p1 deconv + IN + ReLU; the input of the block gates the result through its global mean'''
    def __init__(self, cin, cout):
        super(GatedUp, self).__init__()
        self.deconv = nn.ConvTranspose2d(cin, cout, 4, 2, 1, bias=False)
        self.IN = nn.InstanceNorm2d(cout, affine=True, track_running_stats=False)
        self.relu = nn.ReLU(True)
        self.g = nn.Linear(cin, cout)

    def forward(self, x):
        w = torch.sigmoid(self.g(x.mean(dim=[2, 3])))
        y = self.relu(self.IN(self.deconv(x)))
        return y * w[..., None, None]


class Model(nn.Module):
    def __init__(self, cin, cout):
        super(Model, self).__init__()
        self.block = GatedUp(cin, cout)

    def forward(self, x):
        return self.block(x)


bsize = 16
cin, cout = 128, 96
imsize = 192


def get_inputs():
    return [torch.randn(bsize, cin, imsize, imsize)]


def get_init_inputs():
    return [cin, cout]
