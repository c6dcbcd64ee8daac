import torch, torch.nn as nn, torch.nn.functional as F

OBS, ACT, ENVS = 17, 6, 1024

class Model(nn.Module):
    def __init__(self, obs, act, h=(64, 64)):
        super().__init__()
        self.fc = nn.ModuleList([nn.Linear(obs, h[0]), nn.Linear(h[0], h[1])])
        self.pi = nn.Linear(h[1], act)
        self.v = nn.Linear(h[1], 1)

    def forward(self, o):
        for l in self.fc: o = torch.tanh(l(o))
        return F.softmax(self.pi(o), -1), self.v(o).squeeze(-1)

def get_inputs(): return [torch.randn(ENVS, OBS)]
def get_init_inputs(): return [OBS, ACT]
