"""Linear layer and cross entropy with smoothing and ignored labels."""

import torch
import torch.nn as nn
import torch.nn.functional as F

INPUT_SETS = {"small": {"tokens": 24, "hidden": 16, "vocab": 48}, "ragged": {"tokens": 21, "hidden": 13, "vocab": 37}}
tokens = 1024
hidden = 512
vocab = 8000


class Model(nn.Module):
    def __init__(self, hidden, vocab, ignore_index):
        super().__init__()
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.ignore_index = ignore_index

    def forward(self, hidden_states, labels):
        return F.cross_entropy(self.lm_head(hidden_states).float(), labels, ignore_index=self.ignore_index, label_smoothing=0.1)


def get_inputs():
    labels = torch.randint(0, vocab, (tokens,))
    labels[::5] = -100
    return [torch.randn(tokens, hidden), labels]


def get_init_inputs():
    return [hidden, vocab, -100]
