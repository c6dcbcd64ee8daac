"""TTIR's operations on values as torch functions over [cases, programs, *tile] tensors."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernrl.verifier.interpret.libdevice import library_function
from kernrl.verifier.interpret.narrow_products import emulated
from kernrl.verifier.plan.ttir import Op, TtirError

_SHAPE = re.compile(r"tensor<((?:\d+x)+)")


def evaluate(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """The result of one operation, of dtype `dtype`. Raises TtirError for an unknown operation."""
    if op.name in _PLAIN:
        return _PLAIN[op.name](*arguments)
    if op.name in _SHAPED:
        return _SHAPED[op.name](op, arguments, dtype)
    if op.name in _CASTS:
        return _cast(op.name, arguments[0], dtype, op.text)
    raise TtirError(f"the operation {op.name} cannot be interpreted")


# --- integers that wrap and do not trap ---------------------------------------------------------------------------


def _divide(a: Tensor, b: Tensor) -> Tensor:
    # a masked-off element may divide by zero; on a GPU that gives a value which is never used
    return torch.div(a, torch.where(b == 0, torch.ones_like(b), b), rounding_mode="trunc")


def _remainder(a: Tensor, b: Tensor) -> Tensor:
    return torch.fmod(a, torch.where(b == 0, torch.ones_like(b), b))


def _unsigned(a: Tensor) -> Tensor:
    """A signless integer read as unsigned: nonnegative int64 for narrower types; int64 keeps its bits."""
    if a.dtype == torch.bool:
        return a.long()
    bits = a.dtype.itemsize * 8
    return a.long() & ((1 << bits) - 1) if bits < 64 else a


def _of_unsigned(operate: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def apply(a: Tensor, b: Tensor) -> Tensor:
        if a.dtype == torch.int64 and bool(((a < 0) | (b < 0)).any()):
            raise TtirError("unsigned 64-bit arithmetic beyond 2**63")
        return operate(_unsigned(a), _unsigned(b)).to(a.dtype)

    return apply


def _shift_right_logical(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype == torch.int64:
        kept = (a >> b) & ~(torch.full_like(a, -1) << (64 - b.clamp(min=1)))
        return torch.where(b == 0, a, kept)
    return (_unsigned(a) >> b.long()).to(a.dtype)


def _high_product(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype != torch.int32:
        raise TtirError("a 64-bit high product")
    low = (_unsigned(a) & 0xFFFF) * _unsigned(b)
    high = (_unsigned(a) >> 16) * _unsigned(b)
    return ((high + (low >> 16)) >> 16).to(torch.int32)


def _compare(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    a, b = arguments
    kind = op.text.strip().split(",")[0]
    if op.name == "arith.cmpi":
        if kind[0] == "u":
            sign = -(1 << 63)
            a, b = (v ^ sign if v.dtype == torch.int64 else _unsigned(v) for v in (a, b))
        elif kind[0] == "s" and a.dtype == torch.bool:
            a, b = -a.long(), -b.long()
        return _RELATIONS[kind[-2:]](a, b)
    unordered = torch.isnan(a) | torch.isnan(b)
    if kind in ("ord", "uno"):
        return ~unordered if kind == "ord" else unordered
    relation = _RELATIONS[kind[1:]](a, b)
    return relation & ~unordered if kind[0] == "o" else relation | unordered


_RELATIONS = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}


# --- constants, shapes, products ----------------------------------------------------------------------------------


def _constant(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    value = op.text.rpartition(" : ")[0] or op.text
    text = re.sub(r"^\s*(?:dense<)?", "", value).rstrip(">").strip()
    if text.startswith("["):
        raise TtirError("a constant of several values")
    return _number(text, dtype).reshape(1, 1, *[1] * len(_shape(op.types)))


def _number(text: str, dtype: torch.dtype) -> Tensor:
    if text in ("true", "false"):
        return torch.tensor(text == "true")
    if text.startswith("0x") and dtype.is_floating_point:
        size = dtype.itemsize
        bits = int(text, 16).to_bytes(size, "little")
        return torch.frombuffer(bytearray(bits), dtype=dtype)[0]
    value = float(text) if dtype.is_floating_point else int(text, 0)
    return torch.tensor(value, dtype=torch.float64 if dtype.is_floating_point else torch.int64).to(dtype)


@functools.lru_cache(maxsize=2048)
def _shape(types: str) -> tuple[int, ...]:
    found = _SHAPE.search(types)
    return tuple(int(d) for d in found[1].split("x")[:-1]) if found else ()


def _to(op: Op) -> tuple[int, ...]:
    return _shape(op.types.rpartition("->")[2])


def _full(value: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A tile at full size, for operations that rearrange its elements."""
    return value.expand(*value.shape[:2], *shape)


def _make_range(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    end, start = (int(v) for v in re.findall(r"(?:end|start) = (\d+)", op.text))
    return torch.arange(start, end, dtype=torch.int32).reshape(1, 1, -1)


def _splat(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    shape = _to(op)
    value = arguments[0]
    return value.reshape(*value.shape, *[1] * len(shape)).expand(*value.shape, *shape)


def _reshape(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    value = arguments[0]
    return _full(value, _shape(op.types.partition("->")[0])).reshape(*value.shape[:2], *_to(op))


def _transpose(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    found = re.search(r"order = array<i32: ([\d, ]+)>", op.text)
    order = [int(v) + 2 for v in found[1].split(",")] if found else [3, 2]
    return _full(arguments[0], _shape(op.types.partition("->")[0])).permute(0, 1, *order)


def _expand_dims(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    found = re.search(r"axis = (\d+)", op.text)
    return arguments[0].unsqueeze(int(found[1]) + 2 if found else 2)


def _dot(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    a, b, c = arguments
    shapes = [tuple(int(d) for d in m[1].split("x")[:-1]) for m in _SHAPE.finditer(op.types)]
    a, b = _full(a, shapes[0]), _full(b, shapes[1])
    if not a.dtype.is_floating_point:
        return (torch.matmul(a.long(), b.long()) + c).to(dtype)
    wide = torch.float64 if a.dtype == torch.float64 else torch.float32
    kind = re.search(r"inputPrecision = (\w+)", op.text)
    if a.dtype == torch.float32 and kind and kind[1] != "ieee":
        return (emulated(a, b, kind[1]) + c).to(dtype)
    return (torch.matmul(a.to(wide), b.to(wide)) + c.to(wide)).to(dtype)


def _join(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    return torch.stack(torch.broadcast_tensors(*(_full(a, _to(op)[:-1]) for a in arguments)), dim=-1)


def _gather(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    found = re.search(r"axis = (\d+)", op.text)
    source, index = arguments
    lead = tuple(map(max, source.shape[:2], index.shape[:2]))
    source, index = (v.expand(*lead, *v.shape[2:]) for v in (source, index))
    return torch.gather(source, int(found[1]) + 2 if found else 2, index.long())


def _clamp(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    x, low, high = arguments
    if "propagateNan = all" in op.text:
        return torch.minimum(torch.maximum(x, low), high)
    return torch.fmin(torch.fmax(x, low), high)


def _library(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """A libdevice function by its symbol, such as `__nv_tanhf`."""
    found = re.search(r'symbol = "(\w+)"', op.text)
    function = library_function(found[1]) if found else None
    if function is None:
        raise TtirError(f"the library function {found[1] if found else '?'} cannot be interpreted")
    return function(*arguments).to(dtype)


def _histogram(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Counts of 0 … n - 1 in each program's tile; other numbers are not counted. An optional mask chooses."""
    source = _full(arguments[0], _shape(op.types.partition("->")[0])).long()
    size = _to(op)[0]
    counted = (source >= 0) & (source < size)
    if len(arguments) > 1:
        counted = counted & arguments[1]
        source = source.expand(counted.shape)
    counts = torch.zeros(*counted.shape[:2], size, dtype=dtype)
    return counts.scatter_add_(2, source.clamp(0, size - 1), counted.to(dtype))


def _concatenate(op: Op, arguments: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    half = (_to(op)[0] // 2, *_to(op)[1:])
    lead = torch.broadcast_shapes(*(a.shape[:2] for a in arguments))
    return torch.cat([a.expand(*lead, *half) for a in arguments], 2)


# --- casts --------------------------------------------------------------------------------------------------------


def _cast(name: str, a: Tensor, dtype: torch.dtype, text: str) -> Tensor:
    if name in ("arith.bitcast", "tt.bitcast"):
        return a.contiguous().view(dtype) if a.dtype != torch.bool and dtype != torch.bool else a.to(dtype)
    if name in ("arith.extui", "arith.uitofp"):
        return _unsigned(a).to(dtype)
    if name in ("arith.fptosi", "arith.fptoui"):
        limits = torch.iinfo(dtype)
        # CUDA saturates, and turns NaN into 0
        wide = torch.nan_to_num(a.double(), nan=0.0).clamp(limits.min if name == "arith.fptosi" else 0, limits.max)
        return wide.trunc().to(dtype)
    if name == "arith.trunci" and dtype == torch.bool:
        return (a & 1).bool()
    if name == "arith.extsi" and a.dtype == torch.bool:
        return -a.to(dtype)
    if name == "tt.fp_to_fp" and "rounding = rtz" in text:
        return _toward_zero(a, dtype)
    return a.to(dtype)


def _toward_zero(a: Tensor, dtype: torch.dtype) -> Tensor:
    """A narrower float, rounded toward zero: one step back where rounding to the nearest went outward."""
    rounded = a.to(dtype)
    outward = (rounded.to(a.dtype).abs() > a.abs()) & torch.isfinite(a)
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]
    return (rounded.view(bits) - outward.to(bits)).view(dtype)


_CASTS = frozenset((
    "arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "arith.trunci", "arith.sitofp", "arith.uitofp",
    "arith.fptosi", "arith.fptoui", "arith.bitcast", "arith.index_cast", "tt.bitcast", "tt.fp_to_fp",
))  # fmt: skip

_PLAIN: dict[str, Callable[..., Tensor]] = {
    "arith.addi": lambda a, b: a ^ b if a.dtype == torch.bool else a + b,
    "arith.subi": lambda a, b: a ^ b if a.dtype == torch.bool else a - b,
    "arith.muli": lambda a, b: a & b if a.dtype == torch.bool else a * b,
    "arith.divsi": _divide,
    "arith.remsi": _remainder,
    "arith.divui": _of_unsigned(_divide),
    "arith.remui": _of_unsigned(_remainder),
    "arith.andi": torch.bitwise_and,
    "arith.ori": torch.bitwise_or,
    "arith.xori": torch.bitwise_xor,
    "arith.shli": torch.bitwise_left_shift,
    "arith.shrsi": torch.bitwise_right_shift,
    "arith.shrui": _shift_right_logical,
    "arith.minsi": torch.minimum,
    "arith.maxsi": torch.maximum,
    "arith.minui": _of_unsigned(torch.minimum),
    "arith.maxui": _of_unsigned(torch.maximum),
    "arith.select": lambda c, a, b: torch.where(c.reshape(*c.shape, *[1] * (a.dim() - c.dim())), a, b),
    "arith.addf": torch.add,
    "arith.subf": torch.sub,
    "arith.mulf": torch.mul,
    "arith.divf": torch.div,
    "arith.remf": torch.fmod,
    "arith.negf": torch.neg,
    "arith.maxnumf": torch.fmax,
    "arith.minnumf": torch.fmin,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
    "math.exp": torch.exp,
    "math.exp2": torch.exp2,
    "math.expm1": torch.expm1,
    "math.log": torch.log,
    "math.log2": torch.log2,
    "math.log1p": torch.log1p,
    "math.sqrt": torch.sqrt,
    "math.rsqrt": torch.rsqrt,
    "math.sin": torch.sin,
    "math.cos": torch.cos,
    "math.tanh": torch.tanh,
    "math.erf": torch.erf,
    "math.absf": torch.abs,
    "math.absi": torch.abs,
    "math.floor": torch.floor,
    "math.ceil": torch.ceil,
    "math.powf": torch.pow,
    "math.erfc": torch.erfc,
    "math.exp10": lambda a: torch.pow(10.0, a.double()).to(a.dtype),
    "math.log10": torch.log10,
    "math.round": lambda a: torch.sign(a) * torch.floor(torch.abs(a) + 0.5),
    "math.roundeven": torch.round,
    "math.trunc": torch.trunc,
    "math.copysign": torch.copysign,
    "math.atan2": torch.atan2,
    "math.cbrt": lambda a: torch.copysign(a.double().abs().pow(1.0 / 3.0), a.double()).to(a.dtype),
    "math.fma": lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype),
    "tt.precise_sqrt": torch.sqrt,
    "tt.precise_divf": torch.div,
    "tt.mulhiui": _high_product,
    "tt.unsplat": lambda a: a.reshape(a.shape[:2]),
    "tt.ptr_to_int": lambda a: a + (1 << 50),  # no address is zero
}

_SHAPED: dict[str, Callable[[Op, Sequence[Tensor], torch.dtype], Tensor]] = {
    "arith.constant": _constant,
    "arith.cmpi": _compare,
    "arith.cmpf": _compare,
    "tt.make_range": _make_range,
    "tt.splat": _splat,
    "tt.broadcast": lambda op, arguments, dtype: _full(arguments[0], _to(op)),
    "tt.expand_dims": _expand_dims,
    "tt.reshape": _reshape,
    "tt.trans": _transpose,
    "tt.dot": _dot,
    "tt.join": _join,
    "tt.gather": _gather,
    "tt.cat": _concatenate,
    "tt.histogram": _histogram,
    "tt.clampf": _clamp,
    "tt.extern_elementwise": _library,
}
