"""Which of the reference's parameters a candidate's stand for, and how they do."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from kernrl.verifier.plan.overlap import span_bytes
from kernrl.verifier.plan.plan import TensorSpec, TraceSpec
from kernrl.verifier.trace.recorder import CUDA, Recorder
from kernrl.verifier.trace.untraceable import Untraceable

_WORDS = {"w": ("weight",), "b": ("bias",), "gamma": ("norm", "weight"), "beta": ("norm", "bias")}
"""Names that stand for others; by convention gamma and beta are a norm's."""


def bind_state(model: torch.nn.Module, spec: TraceSpec, recorder: Recorder) -> dict[int, str]:
    """Map the model's parameters and buffers to the reference's (`counterparts`).

    Returns the storages of parameters without a counterpart, with their names.
    """
    mine = [*model.named_parameters(), *model.named_buffers()]
    pairs = counterparts({name: (tuple(t.shape), isinstance(t, torch.nn.Parameter)) for name, t in mine}, spec.state)
    unmatched = {}
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(spec.precision)
    for name, tensor in mine:
        if name in pairs:
            _stand_for(tensor, spec.state[pairs[name]], pairs[name], recorder)
        else:
            if half is not None and tensor.is_floating_point():
                tensor.data = tensor.data.to(half)
            if isinstance(tensor, torch.nn.Parameter):
                unmatched[recorder.ref(tensor).storage] = f"{name} {list(tensor.shape)}"
        # the module is moved to the GPU after construction
        recorder.place(tensor, CUDA)
    return unmatched


def _stand_for(tensor: torch.Tensor, spec: TensorSpec, key: str, recorder: Recorder) -> None:
    ref = recorder.ref(tensor)
    held = recorder.storages[ref.storage]
    same = (ref.dtype, ref.stride, ref.offset, held.nbytes) == (spec.dtype, spec.stride, 0, span_bytes(spec))
    if not same or held.kind != "temp":
        # cast by the precision policy, a part of a larger tensor, or two parameters that share memory
        tensor.data = recorder.empty(spec)
    recorder.adopt(tensor, "state", key)


def counterparts(mine: Mapping[str, tuple[tuple[int, ...], bool]], state: Mapping[str, TensorSpec]) -> dict[str, str]:
    """Name → the reference's name. `mine`: shape, and whether it is a parameter, by name; buffers match by name alone.

    A parameter of another name stands for the only one of its shape, or for the one whose name shares most words with its own.
    Raises Untraceable where that leaves a choice: bound the other way round, a right candidate would be judged wrong.
    """
    pairs = {name: name for name, (shape, _) in mine.items() if name in state and state[name].shape == shape}
    shapes = {shape: None for name, (shape, learned) in mine.items() if learned and name not in pairs}
    for shape in shapes:
        left = [n for n, (s, learned) in mine.items() if learned and s == shape and n not in pairs]
        free = [k for k, spec in state.items() if spec.shape == shape and k not in pairs.values()]
        pairs |= _matched(left, free, shape)
    return pairs


def _matched(left: list[str], free: list[str], shape: tuple[int, ...]) -> dict[str, str]:
    """Pairs of names of one shape, the most alike first."""
    pairs: dict[str, str] = {}
    while left and free and not (len(left) == len(free) == 1):
        likeness = {(mine, theirs): len(_words(mine) & _words(theirs)) for mine in left for theirs in free}
        best = max(likeness.values())
        tied = [pair for pair, shared in likeness.items() if shared == best]
        clear = [(m, t) for m, t in tied if sum(m == a or t == b for a, b in tied) == 1]
        if not best or not clear:
            raise Untraceable(_sentence(left, free, shape))
        for mine, theirs in clear:
            pairs[mine] = theirs
            left, free = [n for n in left if n != mine], [n for n in free if n != theirs]
    return pairs | dict(zip(left, free, strict=False))


def _words(name: str) -> frozenset[str]:
    """`norm1.weight` → norm, 1, weight."""
    return frozenset(meant for word in re.findall(r"[a-z]+|\d+", name.lower()) for meant in _WORDS.get(word, (word,)))


def _sentence(left: list[str], free: list[str], shape: tuple[int, ...]) -> str:
    mine, theirs = (" or ".join(names[:4]) for names in (left, free))
    return f"of shape {list(shape)}, {mine} may stand for the reference's {theirs}: give parameters the reference's names"
