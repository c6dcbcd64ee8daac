"""The Triton kernels without a GPU: run by Triton's interpreter against float64, and compiled for the GPUs of two makers."""

import itertools
import os
import sys

import pytest
import triton
from support import EXHAUSTIVE, interpreted
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from kernrl.kernels import scale
from kernrl.kernels.over_logits import resident, resident_kernel, shares, vocab_kernels
from kernrl.kernels.over_tokens import token_kernel, token_reduce

ratio = sys.modules["kernrl.kernels.ratio_kl"]
# float32's own: a log-prob of -170 has steps of 1.5e-5, and a ratio and its gradient inherit them.
LIMITS = {
    "logp": 2e-5,
    "entropy": 1e-5,
    "loss": 1e-4,
    "gradient": 1e-4,
    "masked": 0.0,
    "metrics": 1e-4,
    "shares": 1e-5,
    "out": 2e-6,
}

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="compiles and interprets")


@pytest.mark.slow
def test_interpreted_kernels_agree_with_float64():
    [cases] = interpreted.ask("interpreted_kernels", [None])
    assert len(cases) > 30
    for case, errors in cases.items():
        for name, error in errors.items():
            assert error <= LIMITS[name], f"{case}: {name} is off by {error}"


POINTERS = {
    "out_ptr": "*bf16", "logits_ptr": "*bf16", "ids_ptr": "*i64", "flag_ptr": "*i32", "mask_ptr": "*i1", "words_ptr": "*i64",
    "tags_ptr": "*i32", "order_ptr": "*i32", "arrived_ptr": "*i64", "done_ptr": "*i32", "starts_ptr": "*i64",
}  # fmt: skip
INTEGERS = ("n_rows", "vocab", "piece", "chunks", "tokens_per_advantage", "tokens_per_unit", "n_tokens", "n_units", "n")
LOGITS = ("out_ptr", "logits_ptr", "policy_ptr", "ref_ptr")


def compile_for(target, kernel, warps, missing=(), logits="*bf16", options=None, **constants):
    """Compile `kernel` for `target` with no such GPU here; `missing` names the pointers passed as None."""
    signature, fixed, aligned = {}, {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants or name in missing:
            signature[name], fixed[(i,)] = "constexpr", constants.get(name)
        elif name in INTEGERS:
            signature[name] = "i32"
        elif name.endswith("_ptr"):
            signature[name] = logits if name in LOGITS else POINTERS.get(name, "*fp32")
        else:
            signature[name] = "fp32"
        if name.endswith("_ptr"):
            aligned[(i,)] = [["tt.divisibility", 16]]
    source = GluonASTSource if kernel is resident_kernel._resident_kernel else ASTSource
    return triton.compile(
        source(kernel, signature, fixed, aligned), target=target, options={"num_warps": warps, **(options or {})}
    )


HOPPER = GPUTarget("cuda", 90, 32)
TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32), "sm_89": GPUTarget("cuda", 89, 32), "sm_90": HOPPER,
    "sm_100": GPUTarget("cuda", 100, 32), "gfx942": GPUTarget("hip", "gfx942", 64),
}  # fmt: skip
COMPILED_FOR = ("sm_80", "sm_89", "sm_100", "gfx942")
"""What runs on sm_90 is compiled for it below."""
PER_TOKEN = ("weight_ptr", "rho_ptr")
LOSS = {"LOSS": 0, "KL": 3, "CORRECTION": 0, "ENTROPY_GRADIENT": False}
TOKENS = {
    "TRUNCATE": True,
    "UNIT_ADVANTAGE": False,
    "BY_SEQUENCE": False,
    "HELD": 0,
    "BLOCK": token_reduce.BLOCK,
    "MOST_PROGRAMS": token_reduce.MOST_PROGRAMS,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "aligned", "logits"),
    itertools.product(COMPILED_FOR, (True, False), ("*bf16", "*fp32"))
    if EXHAUSTIVE
    else [("sm_80", False, "*bf16"), ("sm_89", True, "*fp32"), ("sm_100", False, "*fp32"), ("gfx942", True, "*bf16")],
)
def test_the_portable_kernels_compile_for_other_gpus(target, aligned, logits):
    """By day every kernel for every target, its four forms by turns."""
    gpu, row = TARGETS[target], {"ALIGNED": aligned}
    kernels = [
        compile_for(gpu, vocab_kernels._loss_kernel, 16, logits=logits, BLOCK=4096, **LOSS, **row),
        compile_for(gpu, vocab_kernels._stats_kernel, 8, logits=logits, BLOCK=2048, **row),
        compile_for(gpu, vocab_kernels._gradient_kernel, 8, logits=logits, BLOCK=4096, ENTROPY_GRADIENT=True, **row),
        compile_for(gpu, ratio._forward_kernel, 8, logits=logits, BLOCK=2048, POLICY_ALIGNED=aligned, REF_ALIGNED=aligned),
        compile_for(gpu, ratio._backward_kernel, 8, logits=logits, BLOCK=4096, **row),
    ]
    assert all(kernel.asm["hsaco" if target == "gfx942" else "cubin"] for kernel in kernels)


TOKEN_FORMS = {
    0: {"KL": 2, "CORRECTION": 3, "missing": ("weight_ptr", "rho_ptr")},
    4: {"KL": 3, "CORRECTION": 0, "missing": PER_TOKEN},
    5: {"KL": 3, "CORRECTION": 0, "missing": PER_TOKEN},
}
"""By the loss: the first clips, the others have branches of their own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "loss"),
    itertools.product(COMPILED_FOR, TOKEN_FORMS)
    if EXHAUSTIVE
    else [("sm_80", 0), ("sm_89", 4), ("sm_100", 5), *(("gfx942", loss) for loss in TOKEN_FORMS)],
)
def test_the_kernel_over_tokens_compiles_for_other_gpus(target, loss):
    """By day one loss for each of NVIDIA's, whose compilers share all but the last step, and each for the other maker's."""
    every = {**TOKENS, "SEQUENCE_RATIO": True, "BY_LENGTH": True, "OWN_COUNT": True, "BY_SEQUENCE": True}
    warps = 8 if loss == 0 else 4
    kernel = compile_for(TARGETS[target], token_kernel._tokens_kernel, warps, LOSS=loss, **TOKEN_FORMS[loss], **every)
    assert kernel.asm["hsaco" if target == "gfx942" else "cubin"]


@pytest.mark.slow
@pytest.mark.parametrize("target", COMPILED_FOR)
def test_the_kernels_beside_it_compile_for_other_gpus(target):
    gpu = TARGETS[target]
    kernels = [
        compile_for(gpu, shares._count_kernel, 8, BLOCK=4096),
        compile_for(gpu, shares._shares_kernel, 8, BLOCK=1024, TRUNCATE=True),
        compile_for(gpu, scale._scale_kernel, 8, BLOCK=scale.BLOCK),
    ]
    assert all(kernel.asm["hsaco" if target == "gfx942" else "cubin"] for kernel in kernels)


@pytest.mark.slow
@pytest.mark.parametrize(("correction", "held"), [(0, 0), (1, token_reduce.MOST_HELD), (2, 1), (3, 0)])
def test_programs_that_wait_for_one_another_fit_on_the_gpu_together(correction, held):
    """As many as are launched must run at once: 65536 registers an SM, of which a warp takes them in steps of 8 a thread."""
    waiting = {"SEQUENCE_RATIO": False, "BY_LENGTH": False, "OWN_COUNT": True, **TOKENS, "HELD": held}
    kernel = compile_for(
        HOPPER, token_kernel._tokens_kernel, token_reduce.WARPS, LOSS=2, KL=3, CORRECTION=correction,
        missing=PER_TOKEN, options={"maxnreg": token_reduce.MAX_REGISTERS}, **waiting,
    )  # fmt: skip
    assert token_reduce.PER_SM * (kernel.metadata.shared + 1024) <= 228 * 1024
    assert token_reduce.PER_SM * token_reduce.WARPS * 32 * token_reduce.MAX_REGISTERS <= 65536
    assert token_reduce.PER_SM * token_reduce.WARPS * 32 <= 2048


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [vocab_kernels._loss_kernel, vocab_kernels._stats_kernel], ids=["loss", "stats"])
@pytest.mark.parametrize(
    ("logits", "aligned"),
    itertools.product(("*bf16", "*fp32"), (True, False)) if EXHAUSTIVE else [("*bf16", False), ("*fp32", True)],
)
def test_no_two_lanes_hold_one_share_of_a_sum(kernel, logits, aligned):
    """Copies of a share differ in their last bits, and to store one from several lanes is a race (compute-sanitizer's)."""
    constants = {"BLOCK": 4096, "ALIGNED": aligned, **(LOSS if kernel is vocab_kernels._loss_kernel else {})}
    compiled = compile_for(HOPPER, kernel, 16, logits=logits, **constants)
    assert "tt.reduce" in compiled.asm["ttgir"]
    assert "convert_layout" not in compiled.asm["ttgir"]


FORMS = [(layout, aligned, logits) for layout in resident.LAYOUTS for aligned in (True, False) for logits in ("*bf16", "*fp32")]
"""Of the resident kernel. By day one of a layout's four, another one than of the layout before: what is asked of shared memory
and registers is the layout's, how rows are copied is the form's."""


def name_of(form):
    layout, aligned, logits = form
    return f"{layout.sharers} x {layout.chunk_bytes}-{'aligned' if aligned else 'odd'}-{logits}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "aligned", "logits"),
    [pytest.param(*f, id=name_of(f)) for i, f in enumerate(FORMS) if EXHAUSTIVE or i % 4 == i // 4 % 4],
)
def test_the_resident_kernel_fits_its_share_of_an_sm(layout, aligned, logits):
    kernel = compile_for(
        HOPPER, resident_kernel._resident_kernel, layout.warps, missing=("weight_ptr", "correction_ptr"), logits=logits,
        CHUNK=layout.chunk_bytes // (2 if logits == "*bf16" else 4), SLOTS=layout.slots, HELD=layout.held, LAG=layout.lag,
        num_warps=layout.warps, ALIGNED=aligned, SHARERS=layout.sharers, **LOSS,
    )  # fmt: skip
    # An H100 SM has 228 KiB of shared memory, of which each program costs 1 KiB more than it asks, and 65536 registers.
    assert layout.programs_per_sm * (kernel.metadata.shared + 1024) <= 228 * 1024
    assert layout.programs_per_sm * layout.warps * 32 * layout.max_registers <= 65536
    # Sixteen bytes a copy: two-byte ones do not exist, and four-byte ones take four times the instructions.
    assert "cp.async.cg" in kernel.asm["ptx"]
    assert "cp.async.ca" not in kernel.asm["ptx"]


@pytest.mark.parametrize("item_bytes", [2, 4])
def test_every_row_that_is_held_fits_its_layout(item_bytes):
    longest = 262_144
    for length in [*range(32_000, longest, 1237), longest]:
        layout = resident.layout_of_row(length, item_bytes)
        assert layout, length
        chunk, piece = layout.chunk_bytes // item_bytes, resident.piece_of_row(length, layout.sharers)
        assert piece * (layout.sharers - 1) < length <= piece * layout.sharers
        assert layout.held <= layout.slots - layout.lag, length
        # A piece ends in its last chunk or the one before, wherever its frame starts and whichever member has it.
        chunks, line = layout.slots + layout.held, resident.LINE_BYTES // item_bytes
        assert piece + (0 if length % line == 0 else line - 1) <= chunks * chunk, length
        assert length - piece * (layout.sharers - 1) > (chunks - 2) * chunk, length
    assert resident.layout_of_row(resident.SHORTEST_ROW // item_bytes - 1, item_bytes) is None
    assert resident.layout_of_row(2**20, item_bytes) is None
