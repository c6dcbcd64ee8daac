"""Inside the compiler's sandbox: TTIR text in, cubin out, by Triton's own pipeline.

The text comes from an untrusted process, so it is parsed here, in a sandboxed process that serves one candidate. Operations
that could bring in other machine code (inline assembly, foreign symbols) are refused.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import tempfile
from typing import Any

from kernrl.verifier.base import compat
from kernrl.verifier.base.devices import arch_number
from kernrl.verifier.rpc.frames import Channel

_DIALECTS = frozenset(("tt", "arith", "math", "scf", "cf", "ub", "builtin"))
_HARMLESS_OPS = frozenset(("llvm.intr.assume", "ttg.barrier", "gpu.barrier"))
"""tl.assume and tl.debug_barrier in the IR of different Triton releases."""
_REFUSED_OPS = {
    "tt.elementwise_inline_asm": "inline assembly is not allowed: write it with tl operations",
    "tt.print": "tl.device_print is not allowed: remove it",
    "tt.assert": "tl.device_assert is not allowed: remove it",
}
_TILE = re.compile(r"tensor<((?:\d+x)+)")
MAX_ELEMENTS_A_THREAD = 2048
"""A thread has 255 registers, so this refuses only hopeless tiles."""
_LIBDEVICE_SYMBOL = re.compile(r"__nv_[a-z0-9_]+")

_WARM_UP = """module {
  tt.func public @k(%arg0: !tt.ptr<f32>) attributes {noinline = false} {
    %0 = tt.make_range {end = 128 : i32, start = 0 : i32} : tensor<128xi32>
    %1 = tt.splat %arg0 : !tt.ptr<f32> -> tensor<128x!tt.ptr<f32>>
    %2 = tt.addptr %1, %0 : tensor<128x!tt.ptr<f32>>, tensor<128xi32>
    %3 = tt.load %2 : tensor<128x!tt.ptr<f32>>
    %4 = math.erf %3 : tensor<128xf32>
    tt.store %2, %4 : tensor<128x!tt.ptr<f32>>
    tt.return
  }
}
"""


_UNARY = ("logf", "erff", "tanhf", "expm1f", "log1pf", "rsqrtf", "floorf", "ceilf", "log2f", "sqrtf")
_EXCERPTS = {f"__nv_{name}": 1 for name in _UNARY} | {"__nv_powf": 2, "__nv_fminf": 2}
"""libdevice functions that fused kernels call, with their number of operands; any other links the whole library."""


class Refused(ValueError):
    """TTIR that is well formed but not allowed."""


class TooWide(ValueError):
    """A tile far beyond a thread's registers, on which LLVM and ptxas would spend minutes."""


def prepare(settings: dict[str, Any]) -> None:
    """Once in the fork server: initialise LLVM and look up ptxas' version, by compiling an example of our own."""
    target = compat.GPUTarget("cuda", arch_number(settings["targets"][0]), 32)
    compat.link_excerpts(compat.excerpts(_EXCERPTS, target))
    for arch in settings["targets"]:
        compile_text(_WARM_UP, arch, {"num_warps": 4, "num_stages": 1})


OUT_OF_TIME = 75
"""Exit code after the CPU seconds have been used up."""

_COUNTED = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)

_PTXAS_FAULT = re.compile(r"^ptxas\b.*\berror\s+: (.*?)\.?$", re.MULTILINE)


def handle(channel: Channel) -> None:
    """Answer one candidate's requests until the channel closes: a header frame, and a frame with the cubin if there is one.

    Ends by itself, or is killed, once it and its ptxas have used up the CPU seconds of a session, which each request states.
    """
    while (asked := channel.recv()) is not None:
        request = json.loads(asked)
        _limit_cpu(request["cpu_s"])
        if _used_s() >= request["cpu_s"]:
            os._exit(OUT_OF_TIME)
        try:
            header, cubin = compile_text(request["ttir"], request["target"], request["options"])
        except Refused as error:
            channel.send(json.dumps({"reject": ["policy", str(error)]}).encode())
        except Exception as error:
            if _used_s() >= request["cpu_s"]:  # what ptxas was killed for
                os._exit(OUT_OF_TIME)
            said = str(error) if isinstance(error, TooWide) else f"{type(error).__name__}: {error}".strip()
            if faults := _PTXAS_FAULT.findall(said):  # Triton's own text has its files, and how to run ptxas again
                said = f"ptxas: {'; '.join(dict.fromkeys(faults))}."
            channel.send(json.dumps({"reject": ["compile_error", said[:1500]]}).encode())
        else:
            channel.send(json.dumps(header).encode())
            channel.send(cubin)


def _used_s() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, _COUNTED))


def _limit_cpu(seconds: float) -> None:
    """Let the kernel kill this process after so many CPU seconds, and any ptxas; whole ones, and never more than before."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    most = max(1, math.ceil(seconds))
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))


def compile_text(ttir: str, arch: str, options: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Compile one TTIR module. Raises Refused, or whatever the pipeline raises."""
    number = arch_number(arch)
    target = compat.GPUTarget("cuda", number, 32)
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write(ttir)
        file.flush()
        module, backend, parsed = compat.parse_ttir(file.name, target, options)
    if module.str_nodebug() != ttir:
        # the plan checks read this text line by line, so it must be exactly what Triton parsed
        raise Refused("the kernel's IR is not in Triton's own notation")
    for name, symbol in compat.operations(module):
        if name.split(".")[0] not in _DIALECTS and name not in _HARMLESS_OPS:
            raise Refused(f"the operation {name} is not allowed in a kernel")
        if name in _REFUSED_OPS:
            raise Refused(_REFUSED_OPS[name])
        if symbol is not None and not _LIBDEVICE_SYMBOL.fullmatch(symbol):
            raise Refused(f"the external function {symbol[:80]} is not allowed: use tl.math or libdevice")
    widest = max((math.prod(int(d) for d in m[1].split("x")[:-1]) for m in _TILE.finditer(ttir)), default=1)
    if widest > MAX_ELEMENTS_A_THREAD * 32 * parsed.num_warps:
        raise TooWide(
            f"a tile of {widest} elements in {parsed.num_warps} warps is {widest // (32 * parsed.num_warps)} a thread, "
            "far beyond its registers: use smaller blocks or more warps"
        )
    name, parameters = compat.entry(module)
    cubin, metadata = compat.lower(module, backend, parsed, target)
    header = {
        "name": metadata["name"],
        "parameters": parameters,
        "shared_bytes": metadata["shared"],
        "num_warps": metadata["num_warps"],
        "global_scratch_bytes": metadata["global_scratch_size"],
        "global_scratch_align": metadata["global_scratch_align"],
        "profile_scratch_bytes": metadata.get("profile_scratch_size", 0),
        "tmem_columns": metadata.get("tmem_size") or 0,
    }
    assert name == metadata["name"] or name in metadata["name"]
    return header, cubin
