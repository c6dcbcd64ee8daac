"""Small and ragged input sets for a task that states none: its constants, rescaled.

Whole numbers that the source assigns at its top level, or writes out where it makes inputs (`constants.py`), are given other
values, one after the other, and a value is kept only while the task's Graph keeps its ops, its wiring, its axes of size 1
and enough to reduce over, some shape follows, and labels and indices still fit (`trial_run.py`). So a kernel size, a group
count or a factor stays what it is; batch, features and pixels change. What the constructor reads by its name stays too:
candidates have the same constructor, and with it that number.

Numbers that are computed of sizes, such as a scale or the divisor of a mean, may change with them. Where some do, there is a
second pair of sets, at which the sizes that they are computed of stay.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import combinations
from math import gcd, prod
from pathlib import Path
from typing import Any, NamedTuple

from kernrl.errors import UsageError
from kernrl.files import replace_file
from kernrl.tasks import constants, eval_mode
from kernrl.tasks.constants import WRITTEN_OUT, Constant, module_constants, names_in_the_model, with_tuples
from kernrl.tasks.graph.canonical.views import axis_groups
from kernrl.tasks.graph.graph import Graph, Node, Value
from kernrl.tasks.graph.lift import lift
from kernrl.tasks.graph.trial_run import has_places, numbers_fit, runs_soon
from kernrl.tasks.task import FULL, RAGGED, SMALL, InputSet, Task

SMALLEST = 8
"""Numbers below this are kept: they are kernel sizes, strides, heads and the like."""

SMALL_SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
SMALL_BATCHES = (2, 4)
PRIMES = (13, 19, 11, 23, 17, 29, 7, 37)
PRIMES_OF_VOLUMES = (11, 7, 13, 5, 17, 19, 23, 29)
PRIMES_OF_SIDES = (11, 7, 13, 5)
"""For tasks with three axes of space, which hold a thousand pixels soon; transposed convolutions make eight of each. So the
axes of space are the shortest that fit, in the small set too."""
RAGGED_BATCHES = (3, 5)
"""What a first axis of an input is asked at, before other sizes are tried."""

MOST_BYTES = 64 << 20
"""Most that the values of a task may take, as float32, at sets that keep its numbers: the interpreter takes no more in time."""

MOST_LIFTS = 60
"""Longest search for one set; a lift takes some 50 ms."""

ALONE = 2
"""Values that a number is tried with at each of the places where it is written out: height and width are two sizes."""

Slot = tuple[str, int | None]
"""A constant, or one entry of a tuple."""


class Derived(NamedTuple):
    """What is derived for a task."""

    sets: tuple[InputSet, ...] = ()
    same_numbers: tuple[InputSet, ...] = ()
    """See `Task.same_numbers`."""

    def given_to(self, task: Task) -> Task:
        """The task with these sets."""
        return replace(task, input_sets=(*task.input_sets, *self.sets), same_numbers=self.same_numbers)


def with_input_sets(task: Task, cache_dir: Path | None = None) -> Task:
    """The task with small and ragged sets: its own where it states any besides the full one, else derived.

    A task that cannot be lifted, or that has no number to change, is given back as it is.

    Args:
        cache_dir: Folder where what was derived is kept by the task's source; nothing is kept where it is None.
    """
    if states_sets(task):
        return task
    return derived(task.pytorch_code, cache_dir).given_to(task)


def states_sets(task: Task) -> bool:
    """Whether a task has any input set besides the full one."""
    return any(s.name != FULL for s in task.input_sets)


def kept_input_sets(source: str, cache_dir: Path | None) -> Derived | None:
    """What was derived from this source before, as `cache_dir` has it; None if it does not. Executes nothing."""
    path = _path(source, cache_dir)
    if path is None or not path.is_file():
        return None
    try:
        kept = json.loads(path.read_text())
        return Derived(*(tuple(_from_row(row) for row in kept[part]) for part in Derived._fields))
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return None  # another version's, or half written: it is derived again


@lru_cache(maxsize=4096)
def derived(source: str, cache_dir: Path | None) -> Derived:
    """What is derived from a source that states no set; see `with_input_sets`."""
    kept = kept_input_sets(source, cache_dir)
    if kept is not None:
        return kept
    task = Task(id="task", pytorch_code=source)
    sets = derive_input_sets(task)
    found = Derived(sets, derive_input_sets(task, same_numbers=True) if _numbers_move(task, sets) else ())
    if path := _path(source, cache_dir):
        with contextlib.suppress(OSError):  # a cache that cannot be written costs time alone
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = {
                part: [{"name": s.name, "constants": dict(s.constants)} for s in each] for part, each in found._asdict().items()
            }
            replace_file(path, json.dumps(rows))
    return found


def _numbers_move(task: Task, sets: Sequence[InputSet]) -> bool:
    return any(lift(task, found).fingerprint != lift(task).fingerprint for found in sets)


def _path(source: str, cache_dir: Path | None) -> Path | None:
    key = hashlib.sha256(f"{_version()}\n{source}".encode()).hexdigest()
    return cache_dir / "input_sets" / f"{key}.json" if cache_dir else None


def derive_input_sets(task: Task, *, same_numbers: bool = False) -> tuple[InputSet, ...]:
    """A small and a ragged set, as far as they exist; none where the task cannot be lifted.

    Args:
        same_numbers: Keep every number that the task computes of its sizes. None where that leaves them too large to interpret.
    """
    try:
        constants, fixed = module_constants(task.pytorch_code), names_in_the_model(task.pytorch_code)
        slots = {slot: n for slot, n in _slots(constants) if n >= SMALLEST and slot[0].partition(".")[0] not in fixed}
        if not slots:
            return ()
        full = lift(task)
    except (UsageError, SyntaxError):
        return ()
    found, graphs = [], [full]
    for name in (SMALL, RAGGED):
        search = _Search(task, full, slots, name, graphs, same_numbers)
        if input_set := search.run():
            found.append(input_set)
            assert search.graph
            if same_numbers and 4 * sum(value.numel for value in search.graph.values.values()) > MOST_BYTES:
                return ()
            graphs = [*graphs, search.graph]
    return tuple(found)


@dataclass
class _Search:
    """The search for one set."""

    task: Task
    full: Graph
    slots: dict[Slot, int]
    name: str
    graphs: Sequence[Graph]
    """The task's at the sets that there are: a candidate has to follow the sizes of all of them."""
    same_numbers: bool
    kept: dict[Slot, int] = field(default_factory=dict)
    """What has been changed so far, and is kept."""
    graph: Graph | None = None
    lifts: int = 0
    tried: bool = True
    """Whether what is kept was run, where numbers may not fit."""
    misfits: int = 0
    """Changes after which numbers do not fit."""

    def run(self) -> InputSet | None:
        """Every size at once, or else by itself; then other numbers, and those that only change together."""
        held = {size for part in (*self.full.inputs, *self.full.parameters) for size in part.value.shape}
        numbers = self._numbers()
        sizes = [slots for slots in numbers if self.slots[slots[0]] in held]
        firsts = {s: next(iter(self._candidates(slots[0])), self.slots[s]) for slots in sizes for s in slots}
        every = self._try(firsts, every=True)
        for slots in [*([] if every else sizes), *(slots for slots in numbers if slots not in sizes)]:
            self._first_that_fits([dict.fromkeys(slots, size) for size in self._candidates(slots[0])])
        self._together()
        for slot in (slot for slots in numbers if len(slots) > 1 for slot in slots):
            now, known = self.kept.get(slot, self.slots[slot]), self.kept.values()
            others = [n for n in self._candidates(slot) if n not in known and (now % 16 or n % 16 == 0)]
            self._first_that_fits([{slot: size} for size in others[:ALONE]])
        # a misfit may come of what was kept before it, if that was not run
        usable = self.kept and (self.tried or not self.misfits)
        return InputSet(self.name, self._constants(self.kept), derived=True) if usable else None

    def _numbers(self) -> list[list[Slot]]:
        """Every number, with the places that it stands at: what is written out several times is mostly one size."""
        found: dict[Slot | int, list[Slot]] = {}
        for slot, value in self.slots.items():
            found.setdefault(value if slot[0].partition(".")[0] in WRITTEN_OUT else slot, []).append(slot)
        return list(found.values())

    def _together(self) -> None:
        """Numbers that must stay equal, or in proportion."""
        rest = [slot for slot in self.slots if slot not in self.kept]
        for value in dict.fromkeys(self.slots[slot] for slot in rest):
            equal = [slot for slot in rest if self.slots[slot] == value]
            if len(equal) > 1:
                self._first_that_fits([dict.fromkeys(equal, size) for size in self._candidates(equal[0])])
        rest = [slot for slot in self.slots if slot not in self.kept]
        for group in [rest, *combinations(rest, 2)] if len(rest) > 2 else [rest]:
            if len(group) > 1 and not any(slot in self.kept for slot in group):
                unit = gcd(*(self.slots[slot] for slot in group))
                self._first_that_fits(
                    [{slot: self.slots[slot] // unit * n for slot in group} for n in self._sizes(unit, len(self.kept))]
                )

    def _first_that_fits(self, changes: Sequence[dict[Slot, int]]) -> None:
        for change in changes:
            if self._try(change):
                return

    def _candidates(self, slot: Slot) -> list[int]:
        value, turn = self.slots[slot], list(self.slots).index(slot)
        batch = any(len(i.value.shape) > 1 and i.value.shape[0] == value for i in self.full.inputs)
        return self._sizes(value, turn, batch)

    def _sizes(self, value: int, turn: int, batch: bool = False) -> list[int]:
        """Sizes to try for a number, in order of preference; other ones each turn, so that two axes are not mixed up."""
        volume = any(len(i.value.shape) > 4 for i in self.full.inputs)
        side = volume and any(value in i.value.shape[2:] for i in self.full.inputs)
        if self.name == SMALL:
            # what divides by 16 goes on doing so: a failure at such sizes is no matter of masks
            first = SMALL_SIZES[(0 if side else turn % 2) + (value % 16 == 0)]
            sizes = (*(SMALL_BATCHES if batch else ()), first, *(n for n in SMALL_SIZES if n != first))
            # of a number of heads or groups that is no power of two, what it divides: 12 * 8 for 768
            shared = [n * m for n in (2, 4, 8) for m in range(3, 65) if value % m == 0 and m & (m - 1) and n * m >= SMALLEST]
            return [n for n in (*sizes, *shared) if n < value]
        known = PRIMES_OF_SIDES if side else PRIMES_OF_VOLUMES if volume else PRIMES
        primes = [known[(turn + i) % len(known)] for i in range(4 if side else 3)]
        plain = [p for p in primes if p < max(value, 16) and p != value]
        # of a number that groups or heads divide, what is left over: 8 * 5 divides by 8 as 128 does
        shared = [next((m * p for p in (5, 3, 7, 13) if m * p < value), 0) for m in range(2, 65) if value % m == 0]
        return [*(RAGGED_BATCHES if batch else ()), *plain, *filter(None, shared)]

    def _try(self, change: Mapping[Slot, int], *, every: bool = False) -> bool:
        """Keep a change if the task stays what it is; `every`: each of its numbers must move a shape of its own."""
        if self.lifts >= MOST_LIFTS:
            return False
        self.lifts += 1
        wanted = {**self.kept, **change}
        changed = InputSet(self.name, self._constants(wanted))
        try:
            graph = lift(self.task, changed)
        except UsageError:
            return False
        before = self.graph or self.full
        if not alike(self.full, graph) or _shapes(before) == _shapes(graph) or not tells_sizes([*self.graphs, graph]):
            return False
        # where every number changes at once, one may have moved that is no size
        if (every or self.same_numbers) and graph.fingerprint != self.full.fingerprint:
            return False
        tried = not has_places(graph) or runs_soon(graph)
        if tried and has_places(graph) and not numbers_fit(self.task, changed):
            self.misfits += 1
            return False
        self.kept, self.graph, self.tried = wanted, graph, tried
        return True

    def _constants(self, changes: Mapping[Slot, int]) -> dict[str, Constant]:
        original = module_constants(self.task.pytorch_code)
        found: dict[str, Constant] = {}
        for (name, index), value in changes.items():
            if index is None:
                found[name] = value
            else:
                parts = found.get(name, original[name])
                assert isinstance(parts, tuple)
                found[name] = (*parts[:index], value, *parts[index + 1 :])
        return found


def _slots(constants: Mapping[str, Constant]) -> Iterator[tuple[Slot, int]]:
    for name, value in constants.items():
        for index, part in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(part, int):
                yield (name, index if isinstance(value, tuple) else None), part


def _shapes(graph: Graph) -> list[tuple[int, ...]]:
    return [value.shape for value in graph.values.values()]


def alike(full: Graph, other: Graph, *, shortest: int = 5) -> bool:
    """The same computation at other sizes: ops, wiring, whole numbers, axes of size 1, and enough to reduce over.

    Args:
        shortest: Least size of an axis that is as long in `full`; the first one may be a batch of two.
    """
    if full.digest(numbers=False) != other.digest(numbers=False):
        return False
    ours, theirs = full.values, other.values
    held = {p.value.name for p in full.parameters}
    for name, one, two in zip(ours, _shapes(full), _shapes(other), strict=True):
        if [s == 1 for s in one] != [s == 1 for s in two] or 0 in two:
            return False
        # a product over two features would show nothing
        if any(t < min(s, shortest) for s, t in list(zip(one, two, strict=True))[name not in held :]):
            return False
    return all(
        _length(b, theirs) >= min(_length(a, ours), 8 if "norm" in a.op else 5)
        for a, b in zip(full.nodes, other.nodes, strict=True)
    )


def tells_sizes(graphs: Sequence[Graph]) -> bool:
    """Every size that a view makes follows from shapes: nothing tells `forward` a number of heads but the constructor."""
    full, values = graphs[0], [graph.values for graph in graphs]

    def axes(value: Value) -> list[tuple[int, ...]]:
        return list(zip(*(each[value.name].shape for each in values), strict=True))

    known = {axis for held in (*full.inputs, *full.parameters) for axis in axes(held.value)}
    for node in full.nodes:
        made = axes(node.value)
        if node.op in ("reshape", "unflatten"):
            for _, pieces in axis_groups(values[0][node.reads[0]].shape, node.value.shape):
                # one piece is what the others leave of the axis
                if sum(made[d] not in known and len(set(made[d])) > 1 for d in pieces) > 1:
                    return False
        known |= {axis for result in node.results for axis in axes(result)}
    return True


def _length(node: Node, values: Mapping[str, Value]) -> int:
    """How many elements one result of a reduction or normalization comes from; 8 for all other ops."""
    if not node.reads:
        return 8
    shape = values[node.reads[0]].shape
    if node.op == "group_norm":
        return prod(shape[1:]) // node["num_groups"]
    if node.op == "instance_norm":
        return prod(shape[2:])
    if node.op == "batch_norm":
        return prod(shape) // shape[1]
    return prod(shape[d] for d in node["dim"]) if node.kind in ("reduction", "normalization") else 8


def _from_row(row: Mapping[str, Any]) -> InputSet:
    return InputSet(row["name"], with_tuples(row["constants"]), derived=True)


@cache
def _version() -> str:
    """Hash of these sources: what another version derived is unknown."""
    digest = hashlib.sha256()
    for path in [*sorted(Path(__file__).parent.glob("*.py")), Path(constants.__file__), Path(eval_mode.__file__)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
