import torch
import torch.nn as nn

# Two rounds of Sinkhorn on a projected affinity, in log space.
NODES = 12288
FEATS = 256


class Model(nn.Module):
    def __init__(self, feats, rounds=2):
        super().__init__()
        self.A = nn.Linear(feats, feats, bias=False)
        self.rounds = rounds

    def forward(self, x, y):
        log_s = self.A(x) @ y.transpose(0, 1) * 0.1
        for _ in range(self.rounds):
            log_s = log_s - torch.logsumexp(log_s, dim=1, keepdim=True)
            log_s = log_s - torch.logsumexp(log_s, dim=0, keepdim=True)
        return log_s.exp()


def get_inputs():
    return [torch.randn(NODES, FEATS), torch.randn(NODES, FEATS)]


def get_init_inputs():
    return [FEATS]
