import torch
import torch.nn as nn

# Long documents, a fixed number of drawers: each drawer spreads one unit of weight over the sentences of its document
DOCS, SENTENCES, DIM = 40, 3600, 1000
DRAWERS = 480


class Model(nn.Module):
    def __init__(self, dim, drawers):
        super().__init__()
        self.label = nn.Linear(dim, drawers)
        self.tilt = nn.Parameter(torch.zeros(drawers, dim))

    def forward(self, doc):
        weight = torch.softmax(self.label(doc) / 12.0, dim=1)
        filled = weight.mT @ doc          # (DOCS, DRAWERS, DIM)
        return torch.tanh(filled + self.tilt)


def get_inputs():
    return [torch.randn(DOCS, SENTENCES, DIM)]


def get_init_inputs():
    return [DIM, DRAWERS]
