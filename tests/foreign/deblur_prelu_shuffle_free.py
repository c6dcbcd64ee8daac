import torch, torch.nn as nn

bs = 4
nf = 64
hw = 512

class Model(nn.Module):
    def __init__(self, nf):
        super().__init__()
        self.c1 = nn.Conv2d(nf, nf, 3, 1, 1)
        self.c2 = nn.Conv2d(nf, nf, 3, 1, 1)
        self.p = nn.PReLU(nf)

    def forward(self, x):
        # EDSR-like: no norm, scaled residual
        r = self.c2(self.p(self.c1(x))).mul(0.1)
        r += x
        return r

def get_inputs():
    return [torch.randn(bs, nf, hw, hw)]

def get_init_inputs():
    return [nf]
