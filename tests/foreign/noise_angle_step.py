import torch
import torch.nn as nn


class Model(nn.Module):
    """Turns a noisy sample back by its angle: 0 is clean, pi / 2 is noise alone.

    clean = cos(angle) * noisy - sin(angle) * direction, where the direction comes out of a convolution
    of the features. Large values are bent in afterwards: y / sqrt(1 + y^2).
    """

    def __init__(self, n_features, n_planes):
        super().__init__()
        self.direction = nn.Conv2d(n_features, n_planes, 5, padding=2)

    def forward(self, features, noisy, angle):
        angle = angle[:, None, None, None]
        turned = angle.cos() * noisy - angle.sin() * self.direction(features.tanh())
        return turned * (1 + turned.square()).rsqrt()


n_samples = 34
n_features = 280
n_planes = 6
side = 120


def get_inputs():
    return [
        torch.randn(n_samples, n_features, side, side),
        torch.randn(n_samples, n_planes, side, side),
        torch.rand(n_samples) * 1.5,
    ]


def get_init_inputs():
    return [n_features, n_planes]
