import torch
import torch.nn as nn

recipes = 3000
ingredients = 36
k = 20


class Model(nn.Module):
    """How well do the ingredients of a recipe go together? Each one is compared with the sum of all the others,
    so every pair is counted twice, hence the half."""

    def __init__(self, k):
        super().__init__()
        self.flavour = nn.Linear(k, k, bias=False)
        self.mild = nn.Parameter(torch.tensor([-0.5]))

    def forward(self, recipe):
        one = nn.functional.softsign(self.flavour(recipe))
        others = one.sum(dim=1, keepdim=True) - one
        harmony = 0.5 * torch.sum(one * others, dim=(1, 2))
        return torch.sigmoid(harmony + self.mild)


def get_inputs():
    return [torch.randn(recipes, ingredients, k) * 0.2]


def get_init_inputs():
    return [k]
