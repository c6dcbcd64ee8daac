import torch
import torch.nn as nn

# TuckER link prediction: core tensor contracted with relation, then subject, then all the objects
triples = 1024
d_e = 200
d_r = 30
entities = 14541


class Model(nn.Module):
    def __init__(self, d_e, d_r, entities):
        super().__init__()
        self.core = nn.Parameter(torch.rand(d_r, d_e, d_e) * 2 - 1)
        self.E = nn.Parameter(torch.randn(entities, d_e) * 0.1)
        self.bn = nn.BatchNorm1d(d_e)

    def forward(self, subj, rel):
        x = self.bn(subj)
        w = torch.einsum("br,rij->bij", rel, self.core)
        x = torch.einsum("bi,bij->bj", x, w) / 10
        scores = x @ self.E.T
        return torch.sigmoid(scores)


def get_inputs():
    return [torch.randn(triples, d_e), torch.randn(triples, d_r)]


def get_init_inputs():
    return [d_e, d_r, entities]
