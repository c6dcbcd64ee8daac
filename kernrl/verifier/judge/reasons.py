"""What is said to the author of a candidate that is refused for its outputs or its launches."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from kernrl.verifier.base.verdict import ErrorRecord
from kernrl.verifier.judge.regimes import NOMINAL, REGIMES, TIMED


def worst_of(records: Sequence[ErrorRecord]) -> ErrorRecord | None:
    """The record to report: the worst on the task's own inputs if one fails there, else the worst of all."""
    own = [r for r in records if r["excess"] > 1 and r["regime"] in (NOMINAL, TIMED)]
    return max(own or records, key=lambda r: r["excess"], default=None)


def wrong_reason(record: ErrorRecord) -> str:
    """What is said for a record of `Judge.compare` that is beyond its tolerance; `worst_of` chose it."""
    where = f"on the {record['input_set']} shapes with {record['regime']} inputs"
    rule = REGIMES.get(record["regime"])
    if rule:
        where += f" ({rule.words})"
    if "mismatch" in record:
        return f"Wrong {where}: {record['mismatch']}."
    times = (
        "NaN or infinity is out of place"
        if record["excess"] == float("inf")
        else f"the error is {record['excess']:.3g}× the tolerance"
    )
    of = f"{record['statistic']} after the call" if "statistic" in record else f"output {record.get('output')}"
    return (
        f"Wrong {where}: {times}; at index {record.get('index')} of {of} it gives "
        f"{record.get('got', math.nan):.6g}, expected {record.get('expected', math.nan):.6g}."
        + (f" It is right on the task's own inputs there. Usual cause: {cause_of(record)}." if rule else "")
    )


def cause_of(record: ErrorRecord) -> str:
    """What usually fails under a record's regime, and how to write it instead; '' for the task's own inputs."""
    rule = REGIMES.get(record["regime"])
    overflows = record["excess"] == float("inf") and record["regime"] in _OF_LARGE_NUMBERS
    return REGIMES["large"].cause if overflows else rule.cause if rule else ""


_OF_LARGE_NUMBERS = ("large", "shifted", "far", "mixed")
"""Regimes under which NaN or infinity comes of numbers that overflow, whatever else each of them is for."""


_TF32_PRODUCT = re.compile(r"tt\.dot .*inputPrecision = tf32 : tensor<[\dx]+xf32>")
_TF32_SHARE = 2.0**-8
"""TF32 keeps 11 bits of a product's operands; sums and later operations magnify that a few times."""

_TF32_HINT = (
    "The error is of the size that TF32 makes: tl.dot rounds float32 operands to TF32 unless told otherwise. Write "
    'tl.dot(..., input_precision="ieee"), or judge both sides under --precision tf32.'
)


def has_tf32_product(ttir: str) -> bool:
    """Whether a kernel's IR multiplies float32 tiles as TF32."""
    return _TF32_PRODUCT.search(ttir) is not None


def with_tf32_hint(reason: str, records: Sequence[ErrorRecord]) -> str:
    """The reason, and what to write instead if the errors are no larger than TF32 products make them under `fp32`."""
    wrong = [r for r in records if r["excess"] > 1]
    alike = all("rms" in r and "scale" in r and r["rms"] <= _TF32_SHARE * r["scale"] for r in wrong)
    return f"{reason} {_TF32_HINT}" if wrong and alike else reason


def decoy_reason(kernel: str) -> str:
    """The sentence for a launch that changes nothing."""
    return f"The output is the same without the kernel {kernel}: launch only kernels that do the work."


def hang_reason(error: str) -> str:
    """The sentence for kernels that do not finish in time."""
    return f"The kernels did not finish on the GPU: {error}."
