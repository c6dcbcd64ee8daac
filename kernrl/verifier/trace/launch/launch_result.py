"""What a launch returns in a trace, in place of Triton's compiled kernel: it can be launched again, and says what it needs.

Registers and shared memory are estimates, since ptxas does not run where a candidate does. Programs ask for them to choose a
grid, and the verifier compiles the kernels itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Protocol

from kernrl.verifier.base.compat import Specialised
from kernrl.verifier.plan.plan import KernelSource
from kernrl.verifier.trace.untraceable import Untraceable

_TILE = re.compile(r"tensor<((?:\d+x)+)(?:!tt\.ptr<)?[a-zA-Z]+(\d+)?")
_DOT = re.compile(r"tt\.dot.* : (tensor<\S+>) \* (tensor<\S+>)")
_BASE_REGISTERS, _MAX_REGISTERS = 16, 255
_BLOCK_REGISTERS, _BLOCK_THREADS = 1 << 16, 1024
_ANOTHER = "a compiled kernel is launched again with {what} that it was not compiled for: launch kernel[grid](...) itself"


class _Records(Protocol):
    """What a launch needs of `Launches`."""

    def relaunch(self, launched: LaunchResult, args: Any, grid: Any) -> None: ...

    def kernel_of(self, launched: LaunchResult) -> KernelSource: ...


class LaunchResult:
    """A kernel compiled for one specialisation. `launched[grid](*args)` records another launch of it."""

    def __init__(self, launches: _Records, fn: Any, special: Specialised, options: Mapping[str, Any]) -> None:
        self._launches, self.fn, self.special, self.options = launches, fn, special, options
        self.name = fn.__name__
        self.n_spills = 0

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, stream=None: self._launches.relaunch(self, args, grid)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Untraceable(f"a compiled kernel's {name} is not known in a trace: decide from shapes")

    def _init_handles(self) -> None:
        """Triton loads the machine code here; there is none."""

    @property
    def n_regs(self) -> int:
        """Registers of a thread: those of its share of the widest tile, twice, and some for addresses."""
        kernel = self._launches.kernel_of(self)
        widest = max((_items(m[1]) for m in _TILE.finditer(kernel.ttir)), default=1)
        wanted = _BASE_REGISTERS + 2 * widest // (32 * kernel.num_warps)
        return min(_MAX_REGISTERS, 8 * math.ceil(wanted / 8))

    @property
    def n_max_threads(self) -> int:
        """Threads that a block may have with so many registers each."""
        return min(_BLOCK_THREADS, _BLOCK_REGISTERS // self.n_regs // 32 * 32)

    @property
    def metadata(self) -> SimpleNamespace:
        """`shared` (bytes), `num_warps`, `num_stages`, `num_ctas`, `name`."""
        kernel = self._launches.kernel_of(self)
        launch = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages, "num_ctas": kernel.num_ctas}
        return SimpleNamespace(shared=_shared_bytes(kernel), name=self.name, **launch)

    @property
    def asm(self) -> dict[str, str]:
        """The IR alone; asking for another stage is refused."""
        return _TtirAlone(ttir=self._launches.kernel_of(self).ttir)

    def with_constants(self, args: Sequence[Any]) -> Sequence[Any]:
        """Arguments for every parameter: a compiled kernel may be given all of them, or those that are not constexpr."""
        runtime = [p.name for p in self.fn.params if not p.is_constexpr]
        if len(args) == len(self.fn.params):
            return args
        if len(args) != len(runtime):
            raise TypeError(f"{self.name} is launched with {len(args)} arguments, and has {len(self.fn.params)} parameters")
        given = dict(zip(runtime, args, strict=True))
        return [given.get(p.name, self.special.bound[p.name]) for p in self.fn.params]

    def check_fits(self, given: Specialised) -> None:
        """Raises Untraceable unless this machine code is right for the given arguments: types, constants, divisibility."""
        mine, names = self.special, list(self.special.signature)
        wider = {i for i, name in enumerate(names) if _takes(mine.signature[name], given, i)}
        same = all(i in wider or mine.signature[name] == given.signature[name] for i, name in enumerate(names))
        if not same or mine.constexprs != {path: v for path, v in given.constexprs.items() if path[0] not in wider}:
            raise Untraceable(_ANOTHER.format(what="types or constants"))
        for path, hints in mine.attrs.items():
            if any(hint not in given.attrs.get(path, []) for hint in hints):
                raise Untraceable(_ANOTHER.format(what=f"a value of {names[path[0]]} (not divisible by 16)"))


def _takes(kind: Any, given: Specialised, i: int) -> bool:
    """Whether machine code for a whole number of this type is right for an argument that Triton would specialise more: a 1 that
    it would fold into the code, or a number that fits a narrower type."""
    found = list(given.signature.values())[i]
    value = given.constexprs.get((i,))
    return (kind in ("i32", "i64") and found == "constexpr" and type(value) is int and value == 1) or (
        kind == "i64" and found == "i32"
    )


class _TtirAlone(dict[str, str]):
    """What a compiled kernel shows of its stages. In use there are more, so that nothing may depend on which there are."""

    def _refuse(self, name: object = None, default: object = None) -> Any:
        if name == "ttir":
            return dict.__getitem__(self, "ttir")
        raise Untraceable("a compiled kernel's asm holds its ttir alone in a trace: decide from shapes")

    __missing__ = get = _refuse  # pyright: ignore[reportAssignmentType]

    def __contains__(self, name: object) -> bool:
        return bool(self._refuse(name))

    __iter__ = __len__ = keys = values = items = _refuse  # pyright: ignore[reportAssignmentType]


def _shared_bytes(kernel: KernelSource) -> int:
    """Operands of the largest product, as often as there are stages, or a warp's partial results of a reduction."""
    products = [
        sum(_items(t[1]) * int(t[2] or 32) // 8 for t in map(_TILE.match, found.groups()) if t)
        for found in _DOT.finditer(kernel.ttir)
    ]
    return max([4 * kernel.num_warps, *(kernel.num_stages * nbytes for nbytes in products)])


def _items(shape: str) -> int:
    return math.prod(int(d) for d in shape.split("x")[:-1])
