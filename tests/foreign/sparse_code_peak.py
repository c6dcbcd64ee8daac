import torch
import torch.nn as nn


class Model(nn.Module):
    """Peak of a sparse code.

    Parameters
    ----------
    n_pixels : int
        Length of a flattened patch.
    n_atoms : int
        Size of the dictionary.

    Notes
    -----
    Coefficients within `dead` of zero vanish, the others move towards zero by `dead`, which is
    learned for each atom. The peak is the largest magnitude over the root mean square.
    """

    def __init__(self, n_pixels, n_atoms):
        super(Model, self).__init__()
        self.analysis = nn.Linear(n_pixels, n_atoms)
        self.dead = nn.Parameter(torch.rand(n_atoms) * 0.1)

    def forward(self, patches):
        """(n_patches, n_pixels) -> (n_patches,)"""
        size = torch.relu(self.analysis(patches).abs() - self.dead)
        power = size.square().mean(dim=1)
        return size.amax(dim=1) / (power + 1e-4).sqrt()


n_patches = 1500
n_pixels = 84 * 84
n_atoms  = 9000


def get_inputs():
    return [torch.rand(n_patches, n_pixels)]


def get_init_inputs():
    return [n_pixels, n_atoms]
