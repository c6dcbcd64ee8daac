import torch
import torch.nn as nn


class Model(nn.Module):
    r"""Mixture-of-softmaxes free energy.

    .. math::
        f(x) = \mathrm{LSE}_j\left(\frac{w_j^\top \hat{x}}{\tau} + b_j\right)

    where :math:`\hat{x}` has zero mean and unit variance over the features.
    """

    def __init__(self, n_features, n_components, tau=2.0):
        super().__init__()
        self.centroids = nn.Linear(n_features, n_components)
        self.n_features = n_features
        self.tau = tau

    def forward(self, x):
        x = nn.functional.layer_norm(x, (self.n_features,))
        s = self.centroids(x).div(self.tau)
        return torch.logsumexp(s, 1).mul(self.tau).neg()


n_samples = 20_000
n_features = 512
n_components = 1_024


def get_inputs():
    return [torch.randn(n_samples, n_features)]


def get_init_inputs():
    return [n_features, n_components]
