"""Ops whose result jumps: rounding in front of one decides on which side an element lands, and either side is right.

`hardshrink` of an element that lies within a rounding of its threshold gives that element or zero. So the reference runs twice
more in float64, with every such element on the one side and on the other; what that changes of an output is no error of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

JUMPING = frozenset(("hardshrink", "threshold", "sign", "sgn", "floor", "ceil", "trunc", "round", "frac"))
ORDERING = frozenset(("gt", "ge", "lt", "le"))
DISTINCT = frozenset(("topk", "sort"))
"""Ops that name no place twice along a dim."""
PICKING = DISTINCT | {"kthvalue", "median"}
"""Ops that say where the elements lie that they pick; of equal elements, torch picks any."""
SEARCHING = PICKING | {"argmax", "argmin", "max", "min"}
"""Ops that put numbers in order, in which NaN has no place: torch takes it for the largest or for the smallest."""
MARGIN = 6.0
"""How many times the modelled error of what a jump reads is within a rounding of it: of 10⁸ errors none is larger."""


def may_jump(name: str) -> bool:
    """Whether an op of that name has a result that jumps."""
    return name.rstrip("_") in JUMPING | ORDERING


@dataclass(slots=True)
class Jumps:
    """What the jumping ops of a reference read, in the order in which they run, and how far rounding may move it."""

    operands: list[Tensor] = field(default_factory=list)
    margins: list[Tensor] = field(default_factory=list)
    near: bool = False
    """Some element lies within its margin of a jump."""
    picks: bool = False
    """Some op picked elements, of which some may be equal."""
    searches: bool = False
    """Some op put numbers in order."""
    places: list[tuple[Tensor, int]] = field(default_factory=list)
    """Of the exact run: places that an op of `DISTINCT` found, and along which dim."""
    _preferred: str = ""
    _loses_nan: bool = False
    _at: int = 0
    _step: Callable[[Any, Any, Any], Any] | None = None
    _side: float | None = None

    def recording(self) -> Jumps:
        """For the exact run."""
        self._step = self._record
        return self

    def forget(self) -> None:
        """Begin again."""
        self.operands, self.margins = [], []

    def measuring(self) -> Jumps:
        """For a run with rounding."""
        self._at, self._step = 0, self._measure
        return self

    def moved(self, side: float | None) -> Jumps:
        """For an exact run with what lies near a jump above (1.0) or below it (-1.0), or each element on a side of its own
        (None)."""
        self._at, self._side, self._step = 0, side, self._move
        return self

    def preferring(self, which: str) -> Jumps:
        """For an exact run in which ops pick the `first` of equal elements, or the `last`."""
        self._preferred, self._step = which, lambda func, args, kwargs: func(*args, **kwargs)
        return self

    def losing_nan(self) -> Jumps:
        """For an exact run in which ops that meet NaN find other elements."""
        self._loses_nan, self._step = True, lambda func, args, kwargs: func(*args, **kwargs)
        return self

    def search(self, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """The result of an op of `SEARCHING`."""
        self.searches, picks = True, func.overloadpacket.__name__ in PICKING
        self.picks |= picks
        found = func(*args, **kwargs)
        if func.overloadpacket.__name__ in DISTINCT and isinstance(found, tuple) and found[1].dim():
            self.places.append((found[1], _given(func, args, kwargs).get("dim", -1)))
        if self._loses_nan:
            return _lost(found, func, args, kwargs)
        return _picked(found, func, args, kwargs, self._preferred) if picks and self._preferred else found

    def takes(self, args: Sequence[Any]) -> bool:
        """Whether the result of an op that may jump (`may_jump`) does so for these arguments."""
        return isinstance(args[0], Tensor) and args[0].is_floating_point()

    def run(self, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """The op, by what the run is for."""
        assert self._step
        return self._step(func, args, kwargs)

    def relative(self, share: float) -> None:
        """Margins where no run with rounding is made: a share of each element."""
        self.margins = [x.abs() * share for x in self.operands]
        self.near = bool(self.operands)

    def _record(self, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        self.operands.append(_operand(args).clone())
        self.margins.append(torch.zeros_like(self.operands[-1]))
        return func(*args, **kwargs)

    def _measure(self, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        at = self._next(args)
        if at is not None:
            exact = self.operands[at]
            off = (_operand(args).double() - exact).nan_to_num(0.0, 0.0, 0.0)
            # what no rounding moves, such as a zero, lies on one side for good, and says nothing of what rounding does to the
            # others: behind a clamp it may be nearly all; an input keeps its sign, however small it is
            moved = off != 0
            rms = _rms(off, moved)
            if off.dim() > 1:  # samples may be of very different sizes
                each = _rms(off.flatten(1), moved.flatten(1), 1)
                rms = torch.maximum(rms, each.reshape(-1, *[1] * (off.dim() - 1)))
            share = _rms((off / exact).nan_to_num(0.0, torch.inf, torch.inf), moved)
            # less for a small element, but not less than it is off in this run: large terms may cancel
            own = torch.fmax(share * exact.abs(), off.abs())
            margin = torch.where(moved, MARGIN * torch.fmin(rms, own), 0.0)
            self.margins[at] = torch.maximum(self.margins[at], margin)
            wide = [exact, *(a.double() if isinstance(a, Tensor) else a for a in args[1:])]
            if len(args) > 1 and isinstance(args[1], Tensor):  # two tensors: their difference was kept
                wide[1] = torch.zeros_like(exact)
            name = func.overloadpacket.__name__
            # in place is looked at in the runs themselves; a rehearsal has no numbers, and plans for both runs
            if not name.endswith("_") and not exact.is_meta:
                self.near |= any(bool(_jumped(func, wide, kwargs, side * self.margins[at])[0].any()) for side in (1.0, -1.0))
            else:
                self.near = True
        return func(*args, **kwargs)

    def _move(self, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        at = self._next(args)
        if at is None or func.overloadpacket.__name__.endswith("_"):
            return func(*args, **kwargs)
        step = self.margins[at]
        step = torch.where(torch.rand_like(step) < 0.5, step, -step) if self._side is None else self._side * step
        jumped, beyond, here = _jumped(func, args, kwargs, step)
        return torch.where(jumped, beyond, here)

    def _next(self, args: Sequence[Any]) -> int | None:
        at, self._at = self._at, self._at + 1
        fits = at < len(self.operands) and self.operands[at].shape == _operand(args).shape
        return at if fits else None


def _picked(found: Any, func: Any, args: Sequence[Any], kwargs: Any, which: str) -> Any:
    """What an op has found, with other places: those of the first of equal elements, or the last."""
    given = _given(func, args, kwargs)
    x, dim = given["self"], given.get("dim", -1)
    # a stable sort picks the first one, and a median of all says no place
    if not isinstance(found, tuple) or given.get("stable") or not x.dim() or x.is_meta:
        return found
    ordered = x if which == "first" else x.flip(dim)
    ranks = ordered.argsort(dim=dim, stable=True).argsort(dim=dim)  # as x, less the equal ones
    _, places = func(**given | {"self": ranks if which == "first" else ranks.flip(dim)})
    return found[0], places


def _given(func: Any, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """An op's arguments by name, without those that are left at their defaults."""
    return dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | dict(kwargs)


def _lost(found: Any, func: Any, args: Sequence[Any], kwargs: Any) -> Any:
    """What an op has found; where NaN is among what it has searched, NaN and the place behind."""
    dims = [a.default_value for a in func._schema.arguments if a.name == "dim"]
    given = _given(func, args, kwargs)
    x = given["self"]
    if not dims or not x.dim() or not x.is_floating_point():  # the largest of all is NaN itself
        return found
    dim = given.get("dim", dims[0])
    lost = x.isnan().any() if dim is None else x.isnan().any(dim, keepdim=True)
    size = x.numel() if dim is None else x.shape[dim]

    def other(y: Tensor) -> Tensor:
        here = lost if dim is None or y.dim() == x.dim() else lost.squeeze(dim)
        return torch.where(here, torch.nan if y.is_floating_point() else (y + 1) % size, y)

    return tuple(map(other, found)) if isinstance(found, tuple) else other(found)


def _rms(x: Tensor, among: Tensor, dim: int | None = None) -> Tensor:
    """Root mean square of some elements, those of others being 0."""
    return (x.square().sum(dim) / among.sum(dim).clamp_min(1)).sqrt()


def _operand(args: Sequence[Any]) -> Tensor:
    """What a jump is decided by: of two tensors their difference."""
    return args[0] - args[1] if len(args) > 1 and isinstance(args[1], Tensor) else args[0]


def _jumped(func: Any, args: Sequence[Any], kwargs: Any, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(where the result jumps when the first operand is moved by a step, the result there, and where it was)."""
    here, beyond = func(*args, **kwargs), func(args[0] + step, *args[1:], **kwargs)
    if here.dtype == torch.bool:
        return here != beyond, beyond, here
    return (here - beyond).abs() > MARGIN * step.abs(), beyond, here


def distinct_along(y: Tensor, jumps: Jumps) -> int | None:
    """The dim along which an output of the exact run names no place twice; None if it is no op's places."""
    for places, dim in jumps.places:
        if not y.is_floating_point() and y.shape == places.shape and not y.is_meta and bool((y == places).all()):
            return dim
    return None


def slack(truth: Sequence[Tensor], others: Sequence[Sequence[Tensor]]) -> list[Tensor | None]:
    """For each output how far its elements may lie from the truth, because they lie there in other runs; None where none do."""
    found: list[Tensor | None] = []
    for i, y in enumerate(truth):
        if not y.is_floating_point():
            found.append(None)
            continue
        far = torch.stack([(run[i] - y).abs().nan_to_num(0.0, 0.0, 0.0) for run in others]).amax(0)
        found.append(far if far.is_meta or bool(far.any()) else None)  # a rehearsal plans for most
    return found
