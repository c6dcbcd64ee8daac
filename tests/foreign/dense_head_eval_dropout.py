import torch
import torch.nn as nn

# Only the end of the moth classifier; the photos were embedded overnight by another job.
# Dropout does nothing in eval, but without it the keys of our saved weights do not fit.
n_moths = 300
n_embedding = 1792
n_species = 840


class Model(nn.Module):
    def __init__(self, n_embedding, n_species):
        super().__init__()
        self.stack = nn.Sequential(
            nn.Dropout(0.4),
            nn.Linear(n_embedding, 640, bias=False),
            nn.BatchNorm1d(640),
            nn.Tanh(),
            nn.Dropout(0.1),
            nn.Linear(640, n_species),
        )
        self.stack.eval()

    def forward(self, moths):
        return torch.log_softmax(self.stack(moths), dim=1)


def get_inputs():
    return [torch.randn(n_moths, n_embedding)]


def get_init_inputs():
    return [n_embedding, n_species]
