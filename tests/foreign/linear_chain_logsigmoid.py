import torch
import torch.nn as nn

# ranking loss terms on the outputs of a two-layer scorer, per pair (no mean over pairs)
pairs = 10000
features = 136   # LETOR
hidden = 200


class Scorer(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.a = nn.Linear(features, hidden)
        self.b = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.b(torch.selu(self.a(x)))


class Model(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.scorer = Scorer(features, hidden)

    def forward(self, winner, loser):
        margin = self.scorer(winner) - self.scorer(loser)
        return -torch.nn.functional.logsigmoid(margin)


def get_inputs():
    return [torch.rand(pairs, features), torch.rand(pairs, features)]


def get_init_inputs():
    return [features, hidden]
