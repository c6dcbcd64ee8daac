"""What is said to the author of a candidate that is refused for its outputs or its launches."""

from __future__ import annotations

from typing import Any


def wrong_reason(record: dict[str, Any]) -> str:
    """The sentence for a record of `Judge.compare` that is beyond its tolerance."""
    where = f"on the {record['input_set']} shapes with {record['regime']} inputs"
    if "mismatch" in record:
        return f"Wrong {where}: {record['mismatch']}."
    times = (
        "NaN or infinity is out of place"
        if record["excess"] == float("inf")
        else f"the error is {record['excess']:.3g}× the tolerance"
    )
    return (
        f"Wrong {where}: {times}; at index {record['index']} of output {record['output']} it gives {record['got']:.6g}, "
        f"expected {record['expected']:.6g}."
    )


def decoy_reason(kernel: str) -> str:
    """The sentence for a launch that changes nothing."""
    return f"The output is the same without the kernel {kernel}: launch only kernels that do the work."


def hang_reason(error: str) -> str:
    """The sentence for kernels that do not finish in time."""
    return f"The kernels did not finish on the GPU: {error}."
