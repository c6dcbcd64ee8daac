import torch
import torch.nn as nn

# What is known of the road from town i to town j is refined by all the detours i -> k -> j.
REGIONS = 2
TOWNS = 360
FACTS = 120


class Model(nn.Module):
    def __init__(self, facts):
        super().__init__()
        self.legs = nn.Linear(facts, 2 * facts)
        self.keep = nn.Parameter(torch.full((facts,), 0.8))

    def forward(self, roads):
        first, second = self.legs(roads).chunk(2, dim=-1)
        detours = torch.einsum("rikf,rkjf->rijf", first.relu(), second)
        return torch.tanh(self.keep * roads + detours / roads.shape[1])


def get_inputs():
    return [torch.randn(REGIONS, TOWNS, TOWNS, FACTS)]


def get_init_inputs():
    return [FACTS]
