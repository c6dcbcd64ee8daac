"""Read Triton's IR: a kernel's operations, and which arguments it loads from and stores to.

The text is as Triton prints it (`compile/compiler_child.py` refuses any other form), one operation on each line. Anything that
the reader does not know raises TtirError, and callers then assume the worst.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


class TtirError(ValueError):
    """Text that is not TTIR as Triton prints it, or an operation this module does not know."""


@dataclass(slots=True)
class Block:
    """A list of operations, with the values passed in on entry."""

    args: list[int]
    ops: list[Op] = field(default_factory=list)


@dataclass(slots=True)
class Op:
    """One operation. Values are numbers, unique in the function."""

    name: str
    operands: list[int]
    results: list[int]
    text: str
    """What follows the name on its line: attributes, operands and types."""
    regions: list[dict[str, Block]] = field(default_factory=list)
    """Blocks by label, in order; the entry is the first."""

    @property
    def types(self) -> str:
        """The types after the last ` : `."""
        return self.text.rpartition(" : ")[2]


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A kernel: its parameters' values and types, and its body's blocks by label."""

    name: str
    params: tuple[int, ...]
    param_types: tuple[str, ...]
    """`*f32` for a pointer to float32, else `i32`, `f32`, …"""
    body: dict[str, Block]

    def walk(self) -> Iterator[Op]:
        """Every operation, outer before inner."""
        yield from walk(self.body)


def walk(blocks: Mapping[str, Block]) -> Iterator[Op]:
    """Every operation of some blocks, outer before inner."""
    for block in blocks.values():
        for op in block.ops:
            yield op
            for region in op.regions:
                yield from walk(region)


MAX_LINE_CHARS, MAX_RESULTS, MAX_NESTING = 16_384, 512, 64
"""Far beyond any real kernel: forged text must not cost the reader time or memory."""

_VALUE = re.compile(r"%[\w-]+(?:#\d+)?")
_OP = re.compile(r'(?:(%[\w-]+(?:, %[\w-]+)*)(?::(\d+))? = )?"?([a-z_]+\.[a-z_.0-9]+)"?(.*)')
_PARAM = re.compile(r"(%[\w-]+): (!tt\.ptr<(\w+)(?:, \d+)?>|[a-z]\w*)")
_LABEL = re.compile(r"\^(\w+)(?:\((.*)\))?:.*")


_ALIGNED = re.compile(r"%[\w-]+: (?:!tt\.ptr<\w+(?:, \d+)?>|[a-z]\w*)(?: \{tt\.divisibility = (\d+) : i32\})?")
_LOOP_HINT = re.compile(r"#loop_\w+ = #llvm\.loop_(?:annotation|licm|unroll)<[\w #=,]*>\n")
_HINT = re.compile(r" \{tt\.divisibility = \d+ : i32\}")


def parse(text: str) -> Function:
    """The public function of a TTIR module. Raises TtirError."""
    return _parsed(_without_hints(text))


def alignments(text: str) -> list[int]:
    """For each parameter, the number that the compiler takes its value (an address in bytes) for a multiple of; 1 if none."""
    head = _module(text).partition("\n")[2].partition("\n")[0]
    return [int(number or 1) for number in _ALIGNED.findall(head)]


def _without_hints(text: str) -> str:
    """The text without the divisibility of its arguments: often the only difference between the kernels of two input sets."""
    module, _, rest = _module(text).partition("\n")
    head, newline, body = rest.partition("\n")
    return f"{module}\n{_HINT.sub('', head)}{newline}{body}"


def _module(text: str) -> str:
    """The text without the hints for loops that may stand before the module."""
    while found := _LOOP_HINT.match(text):
        text = text[found.end() :]
    return text


@functools.lru_cache(maxsize=128)
def _parsed(text: str) -> Function:
    try:
        return _parse(text)
    except (ValueError, LookupError) as error:
        raise error if isinstance(error, TtirError) else TtirError(f"malformed: {error}") from None


def forget() -> None:
    """Drop what has been read, however large it was."""
    _parsed.cache_clear()
    _accessed.cache_clear()
    access.cache_clear()
    takes_extreme.cache_clear()


def _parse(text: str) -> Function:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#loc")]
    if any(len(line) > MAX_LINE_CHARS for line in lines):
        raise TtirError(f"a line of more than {MAX_LINE_CHARS} characters")
    if len(lines) < 4 or not re.fullmatch(r"module (attributes \{.*\} )?\{", lines[0]):
        raise TtirError("no module")
    head = re.match(r"tt\.func public @(\w+)\((.*)\) attributes \{.*\} \{", lines[1])
    if head is None:
        raise TtirError("no public function")
    reader = _Reader(lines[2:])
    found = [(m[1], f"*{m[3]}" if m[3] else m[2]) for m in _PARAM.finditer(head[2])]
    params = tuple(reader.define(name) for name, _ in found)
    body = reader.region()
    if reader.line() != "}" or reader.rest() not in ([], ["}"]):
        raise TtirError("more than one function: leave noinline out")
    return Function(head[1], params, tuple(kind for _, kind in found), body)


class _Reader:
    """Recursive descent over lines, with scopes of value names."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.at, self.count = lines, 0, 0
        self.scopes: list[dict[str, int]] = [{}]

    def line(self) -> str:
        if self.at >= len(self.lines):
            raise TtirError("the text ends early")
        self.at += 1
        return self.lines[self.at - 1]

    def rest(self) -> list[str]:
        return self.lines[self.at :]

    def define(self, name: str) -> int:
        self.count += 1
        self.scopes[-1][name] = self.count
        return self.count

    def use(self, name: str) -> int:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        raise TtirError(f"{name} is not defined")

    def region(self, names: tuple[str, ...] = ()) -> dict[str, Block]:
        """Blocks up to the line that closes the region; that line is not consumed."""
        if len(self.scopes) > MAX_NESTING:
            raise TtirError(f"regions nested deeper than {MAX_NESTING}")
        self.scopes.append({})
        block = Block([self.define(n) for n in names])
        blocks = {"entry": block}
        while not self.lines[self.at].startswith("}"):
            line = self.line()
            label = _LABEL.fullmatch(line)
            if label:
                arguments = [self.define(m[0]) for m in _VALUE.finditer(label[2] or "")]
                if blocks == {"entry": block} and not block.ops and not block.args:
                    block.args = arguments
                else:
                    block = blocks[label[1]] = Block(arguments)
            else:
                block.ops.append(self.operation(line))
            if self.at >= len(self.lines):
                raise TtirError("the text ends early")
        self.scopes.pop()
        return blocks

    def operation(self, line: str) -> Op:
        found = _OP.fullmatch(line)
        if found is None:
            raise TtirError(f"not an operation: {line[:80]}")
        result, many, name, text = found.groups()
        if name == "tt.elementwise_inline_asm":
            raise TtirError("inline assembly is not allowed: write it with tl operations")
        if name in ("scf.for", "scf.while"):
            op = self.loop(name, text)
        else:
            op = Op(name, [self.use(m[0]) for m in _VALUE.finditer(text)], [], text)
            if text.endswith("{"):
                op.regions.append(self.region())
                while self.line() == "} else {":
                    op.regions.append(self.region())
                self.at -= 1
                closing = self.line()
                if not re.fullmatch(r"\}( \{.*\})?|\}\)( \{.*\})? : .*", closing):
                    raise TtirError(f"not the end of a region: {closing[:80]}")
                op.text += closing
        if many is not None and (len(many) > 3 or int(many) > MAX_RESULTS):
            raise TtirError(f"an operation of {many[:20]} results")
        if result is not None:
            names = [f"{result}#{i}" for i in range(int(many))] if many else result.split(", ")
            op.results = [self.define(name) for name in names]
        return op

    def loop(self, name: str, text: str) -> Op:
        """`scf.for %i = %a to %b step %c iter_args(%x = %y, …)`, `scf.while (%x = %y, …)`; operands: bounds, then initials."""
        pairs = re.findall(r"(%[\w-]+) = (%[\w-]+(?:#\d+)?)", text)
        if name == "scf.for":
            bounds = re.match(
                r" (?:unsigned )?(%[\w-]+) = (%[\w-]+(?:#\d+)?) to (%[\w-]+(?:#\d+)?) step (%[\w-]+(?:#\d+)?)", text
            )
            if bounds is None:
                raise TtirError(f"not a loop: {text[:80]}")
            operands = [self.use(v) for v in (*bounds.groups()[1:], *(init for _, init in pairs[1:]))]
        else:
            operands = [self.use(init) for _, init in pairs]
        op = Op(name, operands, [], text, [self.region(tuple(name for name, _ in pairs))])
        closing = self.line()
        if name == "scf.while":
            if closing != "} do {":
                raise TtirError("a while without a body")
            op.regions.append(self.region())
            closing = self.line()
        if not re.fullmatch(r"\}( (attributes )?\{.*\})?", closing):
            raise TtirError(f"not the end of a loop: {closing[:80]}")
        op.text += closing
        return op


# --- what a kernel touches ---------------------------------------------------------------------------------------

_POINTER_FLOWS = frozenset((
    "tt.addptr", "tt.splat", "tt.unsplat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.bitcast",
    "tt.advance", "tt.join", "tt.cat", "tt.make_tensor_ptr", "tt.make_tensor_descriptor",
))  # fmt: skip
_LOADS = frozenset(f"tt.{n}" for n in ("load", "descriptor_load", "descriptor_gather"))
_STORES = frozenset(f"tt.{n}" for n in ("store", "descriptor_store", "descriptor_scatter"))
_UPDATES = frozenset(f"tt.{n}" for n in ("atomic_rmw", "atomic_cas", "descriptor_reduce"))
_YIELDS = frozenset(("scf.yield", "tt.reduce.return", "tt.scan.return", "scf.condition"))


@dataclass(frozen=True, slots=True)
class Access:
    """Positions of the parameters a kernel loads from and stores to; an atomic does both."""

    reads: frozenset[int]
    writes: frozenset[int]


@functools.lru_cache(maxsize=512)
def access(text: str) -> Access:
    """Which pointer parameters a kernel reads and writes; all of them if that cannot be determined."""
    return _accessed(_without_hints(text))


@functools.lru_cache(maxsize=512)
def _accessed(text: str) -> Access:
    try:
        function = _parsed(text)
        pointers = frozenset(i for i, kind in enumerate(function.param_types) if kind.startswith("*"))
        return _access(function, pointers)
    except (ValueError, LookupError):
        everything = frozenset(range(512))
        return Access(everything, everything)


def _access(function: Function, pointers: frozenset[int]) -> Access:
    flows: list[tuple[int, int]] = []
    for op in function.walk():
        flows += _flows(op)
    roots = _roots({function.params[i]: {i} for i in pointers}, flows)
    reads: set[int] = set()
    writes: set[int] = set()
    tested = _tested_for_null(function)
    for op in function.walk():
        first = roots.get(op.operands[0], set()) if op.operands else set()
        if op.name in _LOADS | _UPDATES:
            reads |= first
        if op.name in _STORES | _UPDATES:
            writes |= first
        touched = set().union(*(roots.get(v, set()) for v in op.operands)) if op.operands else set()
        understood = _LOADS | _STORES | _UPDATES | _POINTER_FLOWS | _YIELDS
        if op.name == "tt.ptr_to_int" and op.results[0] in tested:
            continue
        if touched and op.name not in understood and not op.name.startswith(("scf.", "cf.")) and op.name != "arith.select":
            raise TtirError(f"a pointer goes into {op.name}")
        if op.name == "tt.int_to_ptr":
            raise TtirError("a pointer is made from an integer")
    return Access(frozenset(reads), frozenset(writes))


_EXTREMES = frozenset(f"arith.{n}" for n in ("maxnumf", "maximumf", "minnumf", "minimumf", "cmpf"))
_ATOMIC_EXTREMES = re.compile(r" (?:max|min|umax|umin),")


@functools.lru_cache(maxsize=512)
def takes_extreme(text: str) -> bool:
    """Whether a kernel takes a maximum or a minimum of floats: in a reduction, in a loop, or by atomics."""
    try:
        function = parse(text)
    except TtirError:
        return False
    within = [r for op in function.walk() if op.name in ("tt.reduce", "scf.for", "scf.while") for r in op.regions]
    if any(op.name in _EXTREMES for region in within for op in walk(region)):
        return True
    return any(op.name == "tt.atomic_rmw" and _ATOMIC_EXTREMES.match(op.text) for op in function.walk())


def _tested_for_null(function: Function) -> set[int]:
    """Numbers of addresses that are only compared with zero: `if bias_ptr:`, which any pointer passes."""
    zeros, found, other = set[int](), set[int](), set[int]()
    for op in function.walk():
        if op.name == "arith.constant" and re.fullmatch(r" 0 : i64", op.text):
            zeros.update(op.results)
        elif op.name == "tt.ptr_to_int":
            found.update(op.results)
        elif not (op.name == "arith.cmpi" and op.text.startswith((" ne,", " eq,")) and zeros & set(op.operands)):
            other.update(op.operands)
    return found - other


def _roots(roots: dict[int, set[int]], flows: Sequence[tuple[int, int]]) -> dict[int, set[int]]:
    """The parameters that each value may point into. A value is looked at again only when its set has grown."""
    onward: dict[int, list[int]] = {}
    for source, target in flows:
        onward.setdefault(source, []).append(target)
    grown = list(roots)
    while grown:
        source = grown.pop()
        for target in onward.get(source, ()):
            reached = roots.setdefault(target, set())
            if not roots[source] <= reached:
                reached |= roots[source]
                grown.append(target)
    return roots


def _flows(op: Op) -> Iterator[tuple[int, int]]:
    """Value → value pairs along which a pointer may travel."""
    if op.name in _POINTER_FLOWS:
        sources = op.operands[:1] if op.name != "tt.join" else op.operands
        yield from ((s, r) for s in sources for r in op.results)
    elif op.name == "arith.select":
        yield from ((s, op.results[0]) for s in op.operands[1:])
    elif op.name == "scf.for":
        yield from _carried(op.operands[3:], op.regions[0]["entry"].args[1:], op)
    elif op.name == "scf.while":
        yield from _carried(op.operands, op.regions[0]["entry"].args, op)
        before = op.regions[0]["entry"].ops[-1]
        yield from zip(before.operands[1:], op.regions[1]["entry"].args, strict=False)
        yield from zip(before.operands[1:], op.results, strict=False)
    elif op.name == "scf.if":
        for region in op.regions:
            yield from zip(region["entry"].ops[-1].operands, op.results, strict=False)
    elif op.name.startswith("cf.") and "!tt." in op.text:
        raise TtirError("a pointer crosses a branch")


def _carried(initial: list[int], inside: list[int], op: Op) -> Iterator[tuple[int, int]]:
    last = op.regions[-1]["entry"].ops[-1].operands
    for targets in (inside, op.results if op.name == "scf.for" else []):
        yield from zip(initial, targets, strict=False)
        yield from zip(last, targets, strict=False)
    if op.name == "scf.while":
        yield from zip(last, inside, strict=False)
