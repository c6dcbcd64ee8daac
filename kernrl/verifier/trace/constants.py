"""Values of tensors that a constructor makes out of nothing, such as `torch.linspace(0, 0.1, depth)`. Recording computes
nothing, so what made them is run again, by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kernrl.verifier.base.compat import no_dispatch, no_torch_functions
from kernrl.verifier.interpret.interpreter import interpret
from kernrl.verifier.plan.plan import AtenNode, Plan, Storage, TensorRef, walk_refs

if TYPE_CHECKING:
    from kernrl.verifier.trace.recorder import Recorder

MAX_BYTES = 16 << 20
RANDOM = ("rand", "normal", "uniform", "bernoulli", "dropout", "multinomial", "exponential")
"""Parts of the names of ATen's operations that draw numbers."""


def known_value(recorder: Recorder, tensor: torch.Tensor) -> torch.Tensor | None:
    """The numbers of a tensor in host memory that depends on no input, no state and no chance; None for any other."""
    if not recorder.is_cpu(tensor):
        return None
    ref = recorder.ref(tensor)
    needed, storages = _origin(recorder, ref)
    size = sum(recorder.storages[i].nbytes for i in storages)
    if needed is None or size > MAX_BYTES or any(recorder.storages[i].kind != "temp" for i in storages):
        return None
    nothing = Storage("temp", 0)
    kept = (s if i in storages else nothing for i, s in enumerate(recorder.storages))
    plan = Plan("known", tuple(kept), (), tuple(needed), (ref,), ())
    with no_torch_functions(), no_dispatch():
        made = interpret(plan, {})
        return made[0] if isinstance(made, list) else None


def _origin(recorder: Recorder, ref: TensorRef) -> tuple[list[AtenNode] | None, set[int]]:
    """The nodes that made a tensor, in order, and the storages they touch; no nodes where a launch or chance is among them."""
    wanted, needed = {ref.storage}, []
    for node in reversed(recorder.nodes):
        if not isinstance(node, AtenNode):
            return None, wanted
        written = {o.storage for o in node.outputs if o is not None}
        if written & wanted:
            if any(word in node.op for word in RANDOM):
                return None, wanted
            needed.append(node)
            wanted |= written | {r.storage for a in (*node.args, *node.kwargs.values()) for r in walk_refs(a)}
    return needed[::-1], wanted
