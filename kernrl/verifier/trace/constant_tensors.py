"""Values of tensors that a constructor makes out of nothing, such as `torch.linspace(0, 0.1, depth)`.

Recording computes nothing, so the recorded nodes that made such a tensor are run again, by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernrl.verifier.base.compat import no_dispatch, no_torch_functions
from kernrl.verifier.plan.call_aten import store_aten, view
from kernrl.verifier.plan.plan import AtenNode, Node, Storage, TensorRef, walk_refs

MAX_BYTES = 16 << 20
RANDOM = ("rand", "normal", "uniform", "bernoulli", "dropout", "multinomial", "exponential")
"""Parts of the names of ATen's operations that draw numbers."""


def constant_value(ref: TensorRef, nodes: Sequence[Node], storages: Sequence[Storage]) -> torch.Tensor | None:
    """The numbers of a recorded tensor that depends on no input, no state and no chance; None for any other."""
    needed, touched = _origin(ref, nodes)
    size = sum(storages[i].nbytes for i in touched)
    if needed is None or size > MAX_BYTES or any(storages[i].kind != "temp" for i in touched):
        return None
    with no_torch_functions(), no_dispatch():
        # memory that no node writes is NaN in every float type and -1 in every integer
        memory = {i: torch.full((storages[i].nbytes,), 0xFF, dtype=torch.uint8) for i in touched}
        try:
            for node in needed:
                store_aten(node, lambda ref: view(memory[ref.storage], ref), "cpu")
            return view(memory[ref.storage], ref).clone()
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, MemoryError):
            return None


def _origin(ref: TensorRef, nodes: Sequence[Node]) -> tuple[list[AtenNode] | None, set[int]]:
    """The nodes that made a tensor, in order, and the storages they touch; no nodes if one is a launch or draws numbers."""
    wanted, needed = {ref.storage}, []
    for node in reversed(nodes):
        if not isinstance(node, AtenNode):
            return None, wanted
        written = {o.storage for o in node.outputs if o is not None}
        if written & wanted:
            if any(word in node.op for word in RANDOM):
                return None, wanted
            needed.append(node)
            wanted |= written | {r.storage for a in (*node.args, *node.kwargs.values()) for r in walk_refs(a)}
    return needed[::-1], wanted
