import torch
import torch.nn as nn


class Model(nn.Module):
    """CGCNN convolution on a fixed number of neighbours.

    atom:  (n_atoms, n_feat), nbr: (n_atoms, n_nbr, n_feat), bond: (n_atoms, n_nbr, n_bond)
    The concatenation of the paper is written as a sum of three products.
    """

    def __init__(self, n_feat, n_bond):
        super().__init__()
        self.fc_self = nn.Linear(n_feat, 2 * n_feat)
        self.fc_nbr = nn.Linear(n_feat, 2 * n_feat, bias=False)
        self.fc_bond = nn.Linear(n_bond, 2 * n_feat, bias=False)
        self.ln = nn.LayerNorm(n_feat)
        self.sp = nn.Softplus()

    def forward(self, atom, nbr, bond):
        total = self.fc_self(atom).unsqueeze(1) + self.fc_nbr(nbr) + self.fc_bond(bond)
        flt, core = total.chunk(2, dim=2)
        summed = (torch.sigmoid(flt) * self.sp(core)).sum(dim=1)
        return self.sp(atom + self.ln(summed))


n_atoms, n_nbr = 20000, 12
n_feat, n_bond = 64, 41


def get_inputs():
    return [torch.randn(n_atoms, n_feat), torch.randn(n_atoms, n_nbr, n_feat), torch.rand(n_atoms, n_nbr, n_bond)]


def get_init_inputs():
    return [n_feat, n_bond]
