import torch
import torch.nn as nn

BATCH = 65536
DOF = 7
HIDDEN = 128


class Model(nn.Module):
    """Kinetic energy 0.5 * v^T (L L^T) v of a learned mass matrix, without forming L L^T."""

    def __init__(self, dof, hidden):
        super().__init__()
        self.dof = dof
        self.l1 = nn.Linear(dof, hidden)
        self.l2 = nn.Linear(hidden, dof * dof)

    def forward(self, q, v):
        L = self.l2(torch.sin(self.l1(q)))
        L = L.reshape(-1, self.dof, self.dof)
        w = torch.bmm(v.unsqueeze(1), L).squeeze(1)
        return 0.5 * w.square().sum(dim=-1)


def get_inputs():
    return [torch.rand(BATCH, DOF), torch.randn(BATCH, DOF)]


def get_init_inputs():
    return [DOF, HIDDEN]
