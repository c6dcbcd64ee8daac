"""Tensor descriptors made on the host (`triton.tools.tensor_descriptor.TensorDescriptor`), as if the kernel made them.

A GPU gets a host-made descriptor as an opaque block that the driver encodes. A plan holds pointers and numbers only, so the
kernel takes the base pointer, sizes and strides in its place, and `tt.make_tensor_descriptor` is its first operation. Results
are the same; making the descriptor costs each program some hundred nanoseconds.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from typing import Any

from kernrl.verifier.base import compat
from kernrl.verifier.trace.untraceable import Untraceable

_KIND = re.compile(r"tensordesc<(\w+)\[([\d, ]+)\]")
_PARAM = re.compile(r"%arg(\d+): !tt\.tensordesc<((?:tensor<)?((?:\d+x)+)(\w+)>?)>")


def parts(name: str, kind: str, value: Any) -> Iterator[tuple[str, str, Any]]:
    """(name, Triton type, value) of what a kernel gets for a descriptor: base, sizes, strides."""
    found = _KIND.match(kind)
    if found is None:
        raise Untraceable(f"{name} is a descriptor of an unknown kind ({kind})")
    if value is not None and (value.padding != "zero" or compat.rounds_to_tf32(value)):
        raise Untraceable(f"the descriptor {name} pads with NaN or rounds to TF32: make it in the kernel, with zeros")
    rank = found[2].count(",") + 1
    yield name, f"*{found[1]}", value and value.base
    yield from ((f"{name}.shape.{i}", "i32", value and value.shape[i]) for i in range(rank))
    yield from ((f"{name}.stride.{i}", "i64", value and value.strides[i]) for i in range(rank))


def made_in_kernel(ttir: str, target: compat.GPUTarget) -> str:
    """The IR with each descriptor among its parameters made of a pointer, sizes and strides; other IR as it is."""
    module, _, rest = ttir.partition("\n")
    head, _, body = rest.partition("\n")
    made = []
    for found in _PARAM.finditer(head):
        first, rank = int(found[1]), found[3].count("x")
        sizes, strides = (", ".join(f"%arg{first + 1 + i}" for i in range(start, start + rank)) for start in (0, rank))
        made.append(
            f"    %made{first} = tt.make_tensor_descriptor %arg{first}, [{sizes}], [{strides}] : <{found[4]}>, <{found[2]}>"
        )
        body = re.sub(rf"%arg{first}\b", f"%made{first}", body)
    if not made:
        return ttir
    # a host-made descriptor's base is checked to be aligned
    head = _PARAM.sub(r"%arg\1: !tt.ptr<\4> {tt.divisibility = 16 : i32}", head)
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write("\n".join([module, head, *made, body]))
        file.flush()
        return compat.parse_ttir(file.name, target, {})[0].str_nodebug()
