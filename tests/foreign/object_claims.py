import torch
import torch.nn as nn

N_SCENES = 60
N_PLACES = 120 * 140
N_OBJECTS = 18
WIDTH = 128


class Model(nn.Module):
    """Objects compete for the places of a scene. What a place gives is shared out among the objects; each then
    moves half way to the mean of what it got."""

    def __init__(self, width):
        super().__init__()
        self.look = nn.Linear(width, width, bias=False)
        self.give = nn.Linear(width, width)

    def forward(self, objects, places):
        # (scene, place, object): the shares of a place sum to one
        share = torch.softmax(0.1 * torch.bmm(self.look(places), objects.mT), dim=2)
        got = torch.bmm(share.mT, self.give(places))
        claimed = share.sum(dim=1).unsqueeze(2)
        return 0.5 * (objects + got / (claimed + 1e-3))


def get_inputs():
    return [torch.randn(N_SCENES, N_OBJECTS, WIDTH), torch.randn(N_SCENES, N_PLACES, WIDTH)]


def get_init_inputs():
    return [WIDTH]
