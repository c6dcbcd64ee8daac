"""The functions of NVIDIA's libdevice that Triton exposes, as torch functions, by symbol without `__nv_` and the type.

Approximate ones (`fast_*`) are computed exactly: an interpreter is not the place where a last bit is judged. What is not
listed needs a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_NAMED_ALIKE = (
    "tanh", "erf", "erfc", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
    "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "pow", "fmod", "floor", "ceil", "trunc",
    "hypot", "lgamma", "erfinv", "copysign", "nextafter", "abs",
)  # fmt: skip


def _wide(operate: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """In float64, rounded once to the first argument's dtype."""
    return lambda *arguments: operate(*(a.double() for a in arguments)).to(arguments[0].dtype)


def _away(a: Tensor) -> Tensor:
    """Round halves away from zero."""
    return torch.sign(a) * torch.floor(torch.abs(a) + 0.5)


def _cbrt(a: Tensor) -> Tensor:
    return torch.copysign(a.abs().pow(1.0 / 3.0), a)


def _bits(to: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda a: a.contiguous().view(to)


def _saturated(dtype: torch.dtype, rounded: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Float to integer: out of range saturates, NaN becomes 0."""
    limits = torch.iinfo(dtype)
    return lambda a: rounded(torch.nan_to_num(a.double(), nan=0.0)).clamp(limits.min, limits.max).to(dtype)


_ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "rn": torch.round, "rz": torch.trunc, "rd": torch.floor, "ru": torch.ceil,
}  # fmt: skip

LIBDEVICE: dict[str, Callable[..., Tensor]] = (
    {name: getattr(torch, name) for name in _NAMED_ALIKE}
    | {
        "fabs": torch.abs, "fmax": torch.fmax, "fmin": torch.fmin, "max": torch.maximum, "min": torch.minimum,
        "rint": torch.round, "nearbyint": torch.round, "round": _away,
        "exp10": _wide(lambda a: torch.pow(10.0, a)),
        "cbrt": _wide(_cbrt),
        "rcbrt": _wide(lambda a: 1 / _cbrt(a)),
        "rhypot": _wide(lambda a, b: 1 / torch.hypot(a, b)),
        "sinpi": _wide(lambda a: torch.sin(math.pi * a)),
        "cospi": _wide(lambda a: torch.cos(math.pi * a)),
        "fdim": lambda a, b: torch.where(torch.isnan(a) | torch.isnan(b), a + b, torch.clamp(a - b, min=0)),
        "remainder": _wide(lambda a, b: a - b * torch.round(a / b)),
        "saturate": lambda a: torch.nan_to_num(a, nan=0.0).clamp(0, 1),
        "normcdf": _wide(torch.special.ndtr), "normcdfinv": _wide(torch.special.ndtri),
        "erfcx": _wide(torch.special.erfcx), "erfcinv": _wide(lambda a: torch.erfinv(1 - a)),
        "j0": _wide(torch.special.bessel_j0), "j1": _wide(torch.special.bessel_j1),
        "y0": _wide(torch.special.bessel_y0), "y1": _wide(torch.special.bessel_y1),
        "cyl_bessel_i0": _wide(torch.special.i0), "cyl_bessel_i1": _wide(torch.special.i1),
        "tgamma": _wide(lambda a: torch.exp(torch.lgamma(a)) * torch.where((a < 0) & (torch.floor(a) % 2 != 0), -1.0, 1.0)),
        "ldexp": lambda a, b: torch.ldexp(a, b), "scalbn": lambda a, b: torch.ldexp(a, b),
        "powi": lambda a, b: torch.pow(a, b),
        "fma": lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype),
        "norm3d": _wide(lambda a, b, c: torch.sqrt(a * a + b * b + c * c)),
        "rnorm3d": _wide(lambda a, b, c: torch.rsqrt(a * a + b * b + c * c)),
        "fast_exp": torch.exp, "fast_exp10": _wide(lambda a: torch.pow(10.0, a)), "fast_log": torch.log,
        "fast_log2": torch.log2, "fast_log10": torch.log10, "fast_pow": torch.pow, "fast_tanh": torch.tanh,
        "fast_sin": torch.sin, "fast_cos": torch.cos, "fast_tan": torch.tan, "fast_fdivide": torch.div,
        "isnan": torch.isnan, "isinf": torch.isinf, "finite": torch.isfinite, "isfinite": torch.isfinite,
        "signbit": torch.signbit,
        "float_as_int": _bits(torch.int32), "float_as_uint": _bits(torch.int32),
        "int_as_float": _bits(torch.float32), "uint_as_float": _bits(torch.float32),
        "double_as_longlong": _bits(torch.int64), "longlong_as_double": _bits(torch.float64),
        "int2float_rn": lambda a: a.float(), "int2double_rn": lambda a: a.double(), "ll2float_rn": lambda a: a.float(),
        "llrint": _saturated(torch.int64, torch.round), "llround": _saturated(torch.int64, _away),
        "mul24": torch.mul, "hadd": lambda a, b: ((a.long() + b.long()) >> 1).to(a.dtype),
    }
    # exact operations to the nearest; in the other directions they differ by one bit, which needs a GPU
    | {f"{letter}{name}_rn": operate for letter in "fd" for name, operate in (
        ("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div),
        ("sqrt", torch.sqrt), ("rcp", torch.reciprocal), ("rsqrt", torch.rsqrt),
    )}
    | {f"fma_{how}": lambda a, b, c: (a.double() * b.double() + c.double()).to(a.dtype) for how in ("rn",)}
    | {f"{source}2{target}_{how}": _saturated(dtype, rounded)
       for source in ("float", "double")
       for target, dtype in (("int", torch.int32), ("ll", torch.int64))
       for how, rounded in _ROUNDINGS.items()}
)  # fmt: skip


def library_function(symbol: str) -> Callable[..., Tensor] | None:
    """The function with a symbol such as `__nv_tanhf`, or None."""
    name = symbol.removeprefix("__nv_")
    for candidate in (name, name.removesuffix("f"), name.removesuffix("d")):
        if candidate in LIBDEVICE:
            return LIBDEVICE[candidate]
    return None
