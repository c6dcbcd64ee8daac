"""The Triton kernels without a GPU: run by Triton's interpreter against float64, and compiled for two makers' GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from kernrl.kernels import resident, token_reduce, vocab

# float32's own: a log-prob of -170 has steps of 1.5e-5, and a ratio and its gradient inherit them.
LIMITS = {"logp": 2e-5, "entropy": 1e-5, "loss": 1e-4, "gradient": 1e-4, "masked": 0.0, "metrics": 1e-4, "shares": 1e-5}

# The interpreter has to be chosen before triton is imported, so it has a process of its own.
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="compiles and interprets")


def test_interpreted_kernels_agree_with_float64():
    root = Path(__file__).parents[1]
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", root / "tests" / "interpreted_kernels.py"],
        env=env, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    for case, errors in json.loads(run.stdout).items():
        for name, error in errors.items():
            assert error <= LIMITS[name], f"{case}: {name} is off by {error}"


POINTERS = {
    "out_ptr": "*bf16", "logits_ptr": "*bf16", "ids_ptr": "*i64", "flag_ptr": "*i32", "mask_ptr": "*u8",
}  # fmt: skip
INTEGERS = ("n_rows", "vocab", "tokens_per_advantage", "n_tokens", "programs")


def compile_for(target, kernel, warps, missing=(), logits="*bf16", aligned_rows=True, **constants):
    """Compile `kernel` for `target` with no such GPU here; `missing` names the pointers passed as None."""
    signature, fixed, aligned = {}, {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants or name in missing:
            signature[name], fixed[(i,)] = "constexpr", constants.get(name)
        elif name in INTEGERS:
            signature[name] = "i32"
        elif name.endswith("_ptr"):
            signature[name] = logits if name in ("out_ptr", "logits_ptr") else POINTERS.get(name, "*fp32")
        else:
            signature[name] = "fp32"
        if name.endswith("_ptr") or (name == "vocab" and aligned_rows):
            aligned[(i,)] = [["tt.divisibility", 16]]
    source = GluonASTSource if kernel is resident._resident_kernel else ASTSource
    options = {"num_warps": warps}
    return triton.compile(source(kernel, signature, fixed, aligned), target=target, options=options)


HOPPER, MI300 = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)
LOSS = {"LOSS": 0, "KL": 3, "CORRECTION": 0, "ENTROPY_GRADIENT": False}


@pytest.mark.slow
@pytest.mark.parametrize("target", [HOPPER, MI300], ids=["sm_90", "gfx942"])
@pytest.mark.parametrize("logits", ["*bf16", "*fp32"])
def test_the_portable_kernels_compile_for_nvidia_and_amd(target, logits):
    kernels = [
        compile_for(target, vocab._loss_kernel, 16, logits=logits, BLOCK=4096, **LOSS),
        compile_for(target, vocab._stats_kernel, 8, logits=logits, BLOCK=2048),
        compile_for(target, vocab._gradient_kernel, 8, logits=logits, BLOCK=4096, ENTROPY_GRADIENT=True),
        compile_for(target, token_reduce._partial_kernel, 4, BLOCK=256, LOSS=1, KL=2, CORRECTION=2),
        compile_for(target, token_reduce._total_kernel, 4, BLOCK=token_reduce.PROGRAMS),
    ]
    binary = "cubin" if target is HOPPER else "hsaco"
    assert all(kernel.asm[binary] for kernel in kernels)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [vocab._loss_kernel, vocab._stats_kernel], ids=["loss", "stats"])
@pytest.mark.parametrize("logits", ["*bf16", "*fp32"])
def test_no_two_lanes_hold_one_share_of_a_sum(kernel, logits):
    """Copies of a share differ in their last bits, and to store one from several lanes is a race (compute-sanitizer's)."""
    constants = {"BLOCK": 4096, **(LOSS if kernel is vocab._loss_kernel else {})}
    compiled = compile_for(HOPPER, kernel, 16, logits=logits, aligned_rows=False, **constants)
    assert "tt.reduce" in compiled.asm["ttgir"]
    assert "convert_layout" not in compiled.asm["ttgir"]


@pytest.mark.slow
@pytest.mark.parametrize("layout", resident._LAYOUTS, ids=lambda layout: f"{layout.sharers} x {layout.chunk_bytes}")
def test_the_resident_kernel_fits_its_share_of_an_sm(layout):
    kernel = compile_for(
        HOPPER, resident._resident_kernel, layout.warps, missing=("weight_ptr", "correction_ptr"), CHUNK=layout.chunk,
        SLOTS=layout.slots, HELD=layout.held, LAG=layout.lag, num_warps=layout.warps, **LOSS,
    )  # fmt: skip
    # An H100 SM has 228 KiB of shared memory, of which each program costs 1 KiB more than it asks, and 65536 registers.
    assert layout.programs_per_sm * (kernel.metadata.shared + 1024) <= 228 * 1024
    assert layout.programs_per_sm * layout.warps * 32 * layout.max_registers <= 65536


def test_every_row_that_is_held_fits_its_layout():
    lengths = range(resident._SHORTEST_ROW, 155_649, 8)
    for length in lengths:
        layout = resident.layout_of_row(length)
        assert layout, length
        assert (layout.slots + layout.held - 1) * layout.chunk < length <= (layout.slots + layout.held) * layout.chunk
        assert layout.held <= layout.slots - layout.lag, length
    assert resident.layout_of_row(lengths.start - 8) is None
    assert resident.layout_of_row(lengths.stop + 7) is None
