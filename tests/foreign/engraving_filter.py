import torch

PLATES = 9
C = 60
SIDE = 700


class HalfSize(torch.nn.Module):
    """4 x 4 convolution that keeps every other row and column"""
    def __init__(self, n_in, n_out):
        super(HalfSize, self).__init__()
        self.kernel = torch.nn.Parameter(torch.randn(n_out, n_in, 4, 4) / (4 * n_in ** 0.5))

    def forward(self, plate):
        return torch.nn.functional.conv2d(plate, self.kernel, stride=2, padding=1)


class Model(torch.nn.Module):
    """makes photos look engraved: half the size, every map of every plate normalised on its own, negative parts thinned"""

    def __init__(self, c):
        super(Model, self).__init__()
        self.halve = HalfSize(c, 2 * c)
        self.norm = torch.nn.InstanceNorm2d(2 * c)

    def forward(self, plate):
        lines = self.norm(self.halve(plate))
        return torch.maximum(lines, 0.15 * lines) * 0.6 + 0.2


def get_inputs():
    return [torch.rand(PLATES, C, SIDE, SIDE)]


def get_init_inputs():
    return [C]
