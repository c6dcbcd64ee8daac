"""A count or a history is seen wherever a module keeps it, and what is made once is allowed; recorded without a sandbox."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import functools
import io
import itertools
import mmap
import random
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.front import dense, spec
from torch import Tensor, nn

from kernrl.verifier.base.compat import no_dispatch, no_torch_functions
from kernrl.verifier.trace.record_forward import record_forward
from kernrl.verifier.trace.recorder import Recorder
from kernrl.verifier.trace.recording import recording
from kernrl.verifier.trace.state.python_state import changed, remembered
from kernrl.verifier.trace.untraceable import Untraceable

COUNT, RANGE, HISTORY = itertools.count(), iter(range(100)), []


def counter() -> Callable[[], int]:
    calls = 0

    def tick() -> int:
        nonlocal calls
        calls += 1
        return calls

    return tick


def numbers() -> Any:
    yield from range(100)


tick, generator = counter(), numbers()


class Kept:
    calls = 0

    def append_one(self) -> None:
        self.calls += 1


def bump(kept: Any) -> None:
    kept.calls += 1


class Alike(type):
    def __eq__(cls, other: object) -> bool:
        return True

    __hash__ = type.__hash__


class EqualsAll(metaclass=Alike):
    calls = 0


def _behind_a_setter() -> property:
    seen: list[int] = []
    return property(None, lambda self, value: seen.append(value))


class Box:
    p = _behind_a_setter()


KEYED, MEMBERS, PAIRS, DOTTED = {Kept(): 0}, frozenset([Kept()]), {("a",): 0, ("b",): 0}, {"a.b.c.d.e.f.g.h.i.j.k.l.m.n": [0]}
LOG, BOX, WEIGHT, TYPES, ALIKE = Kept(), Box(), torch.zeros(1), [0], EqualsAll()
WEIGHT.calls = []  # pyright: ignore[reportAttributeAccessIssue]
bound = LOG.append_one
LONG: list[int] = []
LAST, DEEPEST = [0], [0]
DEEP: Any = DEEPEST
for _ in range(30):
    DEEP = [DEEP]
__calls__: list[int] = []


def attribute(self: Any, x: Tensor) -> None:
    self.calls = getattr(self, "calls", 0) + 1


def of_a_part(self: Any, x: Tensor) -> None:
    self.part.calls = getattr(self.part, "calls", 0.5) + 2


def in_a_dict(self: Any, x: Tensor) -> None:
    self.log = {"calls": getattr(self, "log", {"calls": 0})["calls"] + 1}


def of_a_class(self: Any, x: Tensor) -> None:
    Kept.calls += 1


def default(self: Any, x: Tensor, seen: list[int] = []) -> None:  # noqa: B006
    seen.append(1)


def by_address(self: Any, x: Tensor) -> None:
    self.seen = {**getattr(self, "seen", {}), id(x) + len(getattr(self, "seen", {})): 1}


def history(self: Any, x: Tensor) -> None:
    HISTORY.append(x.shape)


DEQUE: collections.deque[int] = collections.deque()
PARTIAL, NAMESPACE = functools.partial(max, [0]), types.SimpleNamespace(calls=0)
READER, LOTS, ARRAY, LOCAL = io.BytesIO(bytes(99)), random.Random(1), np.zeros(2), threading.local()
VARIABLE = contextvars.ContextVar("VARIABLE", default=0)
MADE = types.ModuleType("made")


class Slots:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


SLOTS, ONE = Slots(), {0}


@functools.cache
def cached(key: object) -> int:
    return 0


@functools.lru_cache
def box() -> list[int]:
    return [0]


def constants() -> None: ...


class Hidden:
    calls = 0


constants.__code__ = constants.__code__.replace(co_consts=(None, []))  # pyright: ignore[reportArgumentType]
CLASS_OF, ORDER, RECENT = functools.partial(Hidden), {1: 0, 2: 0, 3: 0}, collections.OrderedDict.fromkeys((1, 2, 3))
FACTORY = collections.defaultdict(itertools.count().__next__)
OBJECTS, MASKED, MAPPED = np.array([0], dtype=object), np.ma.zeros(1, int), mmap.mmap(-1, 16)
STRIDED, REAL = torch.empty(1, device="meta"), torch.zeros(1)


def in_one_mode(self: Any, x: Tensor) -> None:
    if torch.is_grad_enabled():
        HISTORY.append(1)


def stride(self: Any, x: Tensor) -> None:
    STRIDED.data = torch.empty_strided((1,), (STRIDED.stride(0) + 1,), device="meta")


def real(self: Any, x: Tensor) -> None:
    with no_torch_functions(), no_dispatch():
        REAL.add_(1)


def one_more(holder: Any) -> None:
    holder.calls = getattr(holder, "calls", 0) + 1


COUNTED = {
    "a list in a cache": lambda self, x: box().append(1),
    "a constant of code": lambda self, x: constants.__code__.co_consts[1].append(1),
    "a class that a partial holds": lambda self, x: bump(CLASS_OF.func),
    "the order of a dict": lambda self, x: ORDER.setdefault(next(iter(ORDER)), ORDER.pop(next(iter(ORDER)))),
    "the order of an OrderedDict": lambda self, x: RECENT.move_to_end(next(iter(RECENT))),
    "what a defaultdict makes its values by": lambda self, x: (FACTORY[0], FACTORY.pop(0)),
    "an array of objects": lambda self, x: OBJECTS.__iadd__(1),
    "a masked array": lambda self, x: MASKED.__iadd__(1),
    "mapped memory": lambda self, x: MAPPED.__setitem__(0, MAPPED[0] + 1),
    "a stride": stride,
    "a tensor of the host": real,
    "a list in one mode": in_one_mode,
    "a deque": lambda self, x: DEQUE.append(1),
    "an argument of a partial": lambda self, x: PARTIAL.args[0].append(1),
    "a namespace": lambda self, x: one_more(NAMESPACE),
    "a reader": lambda self, x: READER.read(1),
    "a generator of lots": lambda self, x: LOTS.random(),
    "an array": lambda self, x: ARRAY.__iadd__(1),
    "a thread's own": lambda self, x: one_more(LOCAL),
    "a context": lambda self, x: VARIABLE.set(VARIABLE.get() + 1),
    "a module that is made": lambda self, x: one_more(MADE),
    "slots": lambda self, x: one_more(SLOTS),
    "the one member of a set": lambda self, x: ONE.add(ONE.pop() + 1),
    "the size of a cache": lambda self, x: cached(object()),
    "the recursion limit": lambda self, x: sys.setrecursionlimit(sys.getrecursionlimit() + 1),
    "a number in a dict": in_a_dict,
    "an attribute of a class": of_a_class,
    "a mutable default": default,
    "a closure": lambda self, x: tick(),
    "an iterator": lambda self, x: next(COUNT),
    "a range": lambda self, x: next(RANGE),
    "a generator": lambda self, x: next(generator),
    "a list of the module": history,
    "a dict that grows": by_address,
    "the key of a dict": lambda self, x: bump(next(iter(KEYED))),
    "a member of a set": lambda self, x: bump(next(iter(MEMBERS))),
    "one of two keys that look alike": lambda self, x: PAIRS.__setitem__(("a",), PAIRS["a",] + 1),
    "a key with dots": lambda self, x: DOTTED["a.b.c.d.e.f.g.h.i.j.k.l.m.n"].append(1),
    "the object of a method": lambda self, x: bound(),
    "a list on a tensor": lambda self, x: WEIGHT.calls.append(1),
    "a name with underscores": lambda self, x: __calls__.append(1),
    "what is behind a long list": lambda self, x: LAST.append(1),
    "what is deep inside": lambda self, x: DEEPEST.append(1),
    "types of equal values": lambda self, x: TYPES.__setitem__(0, 0 if TYPES[0] is False else False),
    "an object whose class equals all others": lambda self, x: bump(ALIKE),
    "a setter": lambda self, x: setattr(BOX, "p", 1),
    "a limit of the process": lambda self, x: sys.set_int_max_str_digits(sys.get_int_max_str_digits() + 1),
}


def record(keep: Callable[[Any, Tensor], Any]) -> Any:
    class ModelNew(nn.Module):
        kept = staticmethod(keep)

        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Module()

        def forward(self, x: Tensor) -> Tensor:
            self.kept(self, x)
            return x * 2

    recorder = Recorder()
    with recording(recorder):
        return record_forward(ModelNew, spec(dense(8, 32)), recorder, [], again=True)


@pytest.mark.slow
@pytest.mark.parametrize("keep", COUNTED.values(), ids=COUNTED.keys())
def test_a_count_is_refused_wherever_it_is_kept(keep, monkeypatch):
    if keep is COUNTED["what is behind a long list"]:  # looking through it takes a while
        monkeypatch.setattr(sys.modules[__name__], "LONG", list(range(150_000)))
    with pytest.raises(Untraceable, match="keeps a count or a history"):
        record(keep)


def once(self: Any, x: Tensor) -> None:
    if not hasattr(self, "grid"):
        self.grid = {tuple(x.shape): x.numel()}
        self.nothing = float("nan")
        self.large = 10**10_000


def last_input(self: Any, x: Tensor) -> None:
    self.x = x
    self.shape = tuple(x.shape)


LATE = (
    lambda self: 100.0 < float(self.calls) < 900_000.0,
    lambda self: 3 <= len(str(self.calls)) <= 6,
    lambda self: self.calls > 100,
    lambda self: self.part.calls > 100,
    lambda self: self.calls % 7 == 6,
    lambda self: self.calls == 1000,
)


@pytest.mark.slow
@pytest.mark.parametrize("late", LATE)
def test_a_count_that_matters_later_is_refused(late):
    def keep(self: Any, x: Tensor) -> None:
        attribute(self, x)
        of_a_part(self, x)
        if late(self):
            x.exp()

    with pytest.raises(Untraceable, match="does something else when it is called again"):
        record(keep)


def recent(self: Any, x: Tensor) -> None:
    tables = vars(self).setdefault("tables", collections.OrderedDict())
    tables[x.shape] = 1
    tables.move_to_end(x.shape)


def locked(self: Any, x: Tensor) -> None:
    with vars(self).setdefault("lock", threading.Lock()):
        cached(x.shape)


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    block: int = 64


def settings(self: Any, x: Tensor) -> None:
    self.settings = Settings()


HONEST = {
    "a frozen dataclass with slots": settings,
    "a table by recent use": recent,
    "a lock and a cache": locked,
    "what is made once": once,
    "the last input": last_input,
    "a count for a log": attribute,
    "a part's count": of_a_part,
}


@pytest.mark.slow
@pytest.mark.parametrize("keep", HONEST.values(), ids=HONEST.keys())
def test_what_decides_nothing_is_allowed(keep):
    assert record(keep).nodes


@dataclasses.dataclass(frozen=True)
class Borrowed:
    """What dataclasses gives to classes with slots reads a property here."""

    block: int = 64
    __getstate__ = vars(dataclasses)["_dataclass_getstate"]


class Copied(Borrowed):
    __getstate__ = vars(dataclasses)["_dataclass_getstate"]

    @property
    def block(self) -> int:
        return len(HISTORY)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Borrowed, Copied])
def test_a_method_of_dataclasses_is_theirs_only_where_it_copies_slots(kind):
    def keep(self: Any, x: Tensor) -> None:
        self.settings = object.__new__(kind)

    with pytest.raises(Untraceable, match="a method __getstate__ of its own"):
        record(keep)


# made by the test: what a mark holds, every walk of this module looks through
@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [lambda: [object() for _ in range(100_001)], lambda: functools.reduce(lambda a, _: [a], range(70), [object()])]
)
def test_more_than_can_be_looked_through_is_refused(make):
    model = nn.Module()
    model.__dict__["keep"] = make()
    with pytest.raises(Untraceable, match="a count could hide among them"):
        remembered(model)


def test_nothing_of_a_candidate_is_called():
    class Trap(nn.Module):
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    class Bad(dict[str, int]):
        def items(self) -> Any:
            raise AssertionError

    trap = nn.Module()
    trap.__dict__["bad"] = Bad(a=1)
    trap.__dict__["trap"] = Trap.__new__(Trap)
    found = remembered(trap)
    assert found["self.bad.a"] == (int, 1)
    assert changed(found, {**found, "self.bad.a": 2}) == ["self.bad.a"]
    assert changed(found, {k: v for k, v in found.items() if k != "self.bad.a"}) == ["self.bad.a"]
    assert not changed(found, remembered(trap))


def test_a_walk_ends_where_objects_hold_each_other():
    model = nn.Module()
    ring: list[Any] = [model, torch.zeros(2)]
    ring.append(ring)
    model.__dict__["ring"] = ring
    assert remembered(model)["self.ring<len>"] == 3
