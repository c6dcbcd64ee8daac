"""Which references are judged as in eval mode."""

import pytest

from kernrl.tasks.task import Task, load_reference

SOURCE = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations, spectral_norm

def drop_path(x, p, training):
    return x * torch.rand_like(x[:1]) if training and p else x

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.part = PART

    def forward(self, x):
        return self.norm(FORWARD)

def get_inputs(): return [torch.randn(4, 8)]
def get_init_inputs(): return []
"""


@pytest.mark.parametrize(
    ("part", "forward", "training"),
    [
        ("nn.Identity()", "x", True),
        ("nn.Identity()", "F.dropout(x, 0.1, training=False)", True),
        ("nn.Dropout(0.0)", "self.part(x)", True),
        ("nn.Dropout(0.1).eval()", "self.part(x)", True),
        ("nn.MultiheadAttention(8, 2)", "self.part(x, x, x)[0]", True),
        ("nn.Dropout(0.1)", "self.part(x)", False),
        ("nn.Sequential(nn.ReLU(), nn.AlphaDropout(0.1))", "self.part(x)", False),
        ("nn.RReLU()", "self.part(x)", False),
        ("nn.MultiheadAttention(8, 2, dropout=0.1)", "self.part(x, x, x)[0]", False),
        ("nn.TransformerEncoderLayer(8, 2, 8)", "self.part(x)", False),
        ("nn.LSTM(8, 8, 2, dropout=0.1)", "self.part(x)[0]", False),
        ("parametrizations.spectral_norm(nn.Linear(8, 8))", "self.part(x)", False),
        ("spectral_norm(nn.Linear(8, 8))", "self.part(x)", False),
        ("nn.Identity()", "F.dropout(x, 0.1, training=self.training)", False),
        ("nn.Identity()", "drop_path(x, 0.1, self.training)", False),
    ],
)
def test_training_mode_that_depends_on_chance_or_on_earlier_calls_is_left(part: str, forward: str, training: bool) -> None:
    source = SOURCE.replace("PART", part).replace("FORWARD", forward)
    if "drop_path(" not in forward:
        source = source.replace("if training and p", "if p")
    module = load_reference(Task("t", source)).Model()
    assert module.norm.training is training
