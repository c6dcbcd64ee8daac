import torch
import torch.nn as nn
import torch.nn.functional as F


USER_DIM = 640
ITEM_DIM = 384
SHARED = 256
ROWS = 32768


class Tower(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.fc = nn.Linear(d_in, d_out)

    def forward(self, x):
        return F.normalize(F.relu(self.fc(x)), p=2, dim=-1, eps=1e-6)


class Model(nn.Module):
    """User and item towers; the output is the cosine, stretched by a learned factor."""

    def __init__(self, user_dim, item_dim, shared):
        super().__init__()
        self.user_tower = Tower(user_dim, shared)
        self.item_tower = Tower(item_dim, shared)
        self.stretch = nn.Parameter(torch.tensor(2.6))

    def forward(self, user, item):
        u = self.user_tower(user)
        i = self.item_tower(item)
        return (u * i).sum(-1) * self.stretch.exp()


def get_inputs():
    return [torch.randn(ROWS, USER_DIM), torch.randn(ROWS, ITEM_DIM)]


def get_init_inputs():
    return [USER_DIM, ITEM_DIM, SHARED]
