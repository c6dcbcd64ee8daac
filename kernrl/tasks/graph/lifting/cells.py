"""Cells of recurrent networks, one step of each, in the ops of a Graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernrl.tasks.graph.lifting.aten_shapes import Arguments, Rule

if TYPE_CHECKING:
    from kernrl.tasks.graph.canonical.build import Builder


def _gates(b: Builder, a: Arguments, state: str, pieces: int) -> list[list[str]]:
    """What the input and the state add to each gate."""
    found = []
    for x, weight, bias in ((a["input"], "w_ih", "b_ih"), (state, "w_hh", "b_hh")):
        both = b.add("linear", x, a[weight], a[bias])
        axis = len(b.value(both).shape) - 1
        found.append([b.add("chunk", both, chunks=pieces, dim=axis, index=i) if pieces > 1 else both for i in range(pieces)])
    return found


def _rnn_cell(op: str) -> Rule:
    return lambda b, a: b.add(op, b.add("add", *(gates[0] for gates in _gates(b, a, a["hx"], 1))))


def _gru_cell(b: Builder, a: Arguments) -> str:
    (reset, update, new), (reset_h, update_h, new_h) = _gates(b, a, a["hx"], 3)
    reset, update = (b.add("sigmoid", b.add("add", *pair)) for pair in ((reset, reset_h), (update, update_h)))
    new = b.add("tanh", b.add("add", new, b.add("mul", reset, new_h)))
    return b.add("add", new, b.add("mul", update, b.add("sub", a["hx"], new)))


def _lstm_cell(b: Builder, a: Arguments) -> list[str]:
    hidden, cell = a["hx"]
    into, forget, new, out = (b.add("add", *pair) for pair in zip(*_gates(b, a, hidden, 4), strict=True))
    kept = b.add("mul", b.add("sigmoid", forget), cell)
    cell = b.add("add", kept, b.add("mul", b.add("sigmoid", into), b.add("tanh", new)))
    return [b.add("mul", b.add("sigmoid", out), b.add("tanh", cell)), cell]


CELLS: dict[str, Rule] = {
    "rnn_tanh_cell": _rnn_cell("tanh"),
    "rnn_relu_cell": _rnn_cell("relu"),
    "gru_cell": _gru_cell,
    "lstm_cell": _lstm_cell,
}
"""Name of an ATen op, without its overload → what it says."""
