"""What the cost model of styles must get right for nano to be taught fast ones."""

from kernrl.tasks.solutions.from_graph.plausible import plausible
from kernrl.tasks.solutions.from_graph.styles import graphs_of
from kernrl.tasks.task import Task
from kernrl.verifier.base.devices import device_for

SMALL_ROWS = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(torch.abs(x), -1)

def get_inputs():
    return [torch.randn(4096, 192, {columns})]

def get_init_inputs():
    return []
"""


def modelled(columns: int) -> dict[str, float]:
    device = device_for("NVIDIA H200")
    assert device
    graphs = graphs_of(Task("small rows", SMALL_ROWS.format(columns=columns)))
    found = plausible(graphs, device.rates("tf32"), precision="tf32", within=1000.0)
    return {style.name: seconds for style, seconds in found}


def test_a_program_for_each_of_many_small_rows_takes_longer_than_their_bytes():
    """786,432 programs of 24 numbers: an H200 took 480 µs, and 31 for 64 rows a program."""
    times = modelled(24)
    assert times["fused"] > 5 * times["rows"]


def test_a_program_for_each_long_row_costs_nothing_more():
    times = modelled(1024)
    assert times["fused"] < 1.5 * times["rows"]
