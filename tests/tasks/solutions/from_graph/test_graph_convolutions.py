"""Convolutions written as kernels with their tails: by Triton's interpreter against float64, and compiled for Hopper."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from support import EXHAUSTIVE
from support.graph_tasks import IMAGE, ask, compiled_product, module

from kernrl.tasks.solutions.from_graph.codegen.tile_sizes import SHARED_BYTES, Widths, window_tiles
from kernrl.tasks.solutions.from_graph.styles import STYLES, write_solutions
from kernrl.tasks.task import Task

SEQUENCE, VOLUME = "torch.randn(B, C, 70)", "torch.randn(B, C, 5, 6, 7)"


def small(init: str, forward: str, inputs: str = IMAGE, channels: int = 9) -> str:
    """A task of few elements: the interpreter takes its time over each."""
    return module(init, forward, inputs, B=2, C=channels, H=9, W=11)


CONVOLUTIONS = {
    "tail": small("self.l = nn.Conv2d(C, 17, 3, padding=1)", "return F.gelu(self.l(x)) * 0.5"),
    "strided": small("self.l = nn.Conv2d(C, 17, (3, 2), stride=(1, 2))", "return F.silu(self.l(x - 0.5))"),
    "groups": small("self.l = nn.Conv2d(C, 18, 3, padding=1, dilation=2, groups=2)", "return self.l(x).tanh()", channels=20),
    "few": small("self.l = nn.Conv2d(3, 17, 3, padding=1)", "return self.l(x).relu().mean((2, 3))", "torch.randn(B, 3, H, W)"),
    "patches": small("self.l = nn.Conv2d(3, 17, 2, stride=2)", "return self.l(x).flatten(2).mT", "torch.randn(B, 3, 2 * H, W)"),
    "sequence": small("self.l = nn.Conv1d(C, 17, 5, padding=2, dilation=2)", "return F.silu(self.l(x))", SEQUENCE),
    "volume": small("self.l = nn.Conv3d(C, 17, 3, padding=(1, 0, 1))", "return F.silu(self.l(x)) + 1", VOLUME),
    "transposed": small("self.l = nn.ConvTranspose2d(C, 17, 4, stride=2, padding=1)", "return F.silu(self.l(x)) + 1"),
    "transposed_norm": small(
        "self.l = nn.ConvTranspose2d(C, 17, 4, stride=2, padding=1); self.n = nn.InstanceNorm2d(17, affine=True)",
        "return self.n(self.l(x)).relu()",
    ),
    "transposed_odd": small(
        "self.l = nn.ConvTranspose2d(C, 17, 3, stride=2, output_padding=1)", "return self.l(x).tanh() - x.sum()"
    ),
    "transposed_dilated": small(
        "self.l = nn.ConvTranspose1d(C, 17, 3, stride=2, dilation=2, output_padding=1)", "return self.l(x).relu()", SEQUENCE
    ),
    "transposed_far": small(
        "self.l = nn.ConvTranspose1d(C, 17, 4, stride=3, padding=1, dilation=2, output_padding=1)",
        "return self.l(x).relu()",
        SEQUENCE,
    ),
    "transposed_volume": small(
        "self.l = nn.ConvTranspose3d(C, 17, (2, 1, 3), stride=(2, 1, 3))", "return self.l(x).sigmoid()", VOLUME
    ),
    "transposed_groups": small("self.l = nn.ConvTranspose1d(C, 18, 3, groups=2)", "return self.l(x).tanh()", SEQUENCE, 18),
    "batch_norm": small("self.l = nn.Conv2d(C, 17, 3); self.n = nn.BatchNorm2d(17)", "return F.relu(self.n(self.l(x)))"),
    "group_norm": small("self.l = nn.Conv2d(C, 20, 3); self.n = nn.GroupNorm(4, 20)", "return F.relu(self.n(self.l(x)))"),
    "one_after_another": small(
        "self.a = nn.Conv2d(C, 17, 3); self.b = nn.Conv2d(17, 9, 3, padding=1)", "return self.b(self.a(x))"
    ),
    "rows_of_pixels": small("self.l = nn.Conv2d(C, 17, 3)", "return self.l(x - x.mean((2, 3), keepdim=True)).var(3)"),
    "read_again": small("self.l = nn.Conv2d(C, 17, 3)", "y = self.l(x); return y * y.mean((2, 3), keepdim=True).sigmoid()"),
    "pooled": small("self.l = nn.Conv2d(C, 17, 3)", "return F.max_pool2d(self.l(x).relu(), 2)"),
    "shuffled": small("self.l = nn.Conv2d(C, 32, 3, padding=1)", "return F.pixel_shuffle(self.l(x), 2).tanh()"),
}
"""Name → source of a convolution of another kind, or with another kind of tail."""
SAMPLED = ("strided", "groups", "patches", "transposed", "transposed_norm", "transposed_dilated", "rows_of_pixels")
"""Judged every time; KERNRL_EXHAUSTIVE=1 judges all."""


@cache
def answers() -> dict[str, list[list[str]]]:
    names = CONVOLUTIONS if EXHAUSTIVE else SAMPLED
    sets = ["full", "ragged"] if EXHAUSTIVE else ["ragged"]
    words = ["conv"] if EXHAUSTIVE else ["second"]
    found = ask([{"source": CONVOLUTIONS[n], "sets": sets, "styles": words, "precision": "tf32"} for n in names])
    return dict(zip(names, found, strict=True))


@pytest.mark.slow
def test_convolutions_are_right_in_every_style() -> None:
    assert not [(name, style, problem) for name, found in answers().items() for style, _, problem in found if problem]
    for name, found in answers().items():
        code = next(code for style, code, _ in found if style.startswith("conv"))
        assert "tl.dot(" in code, name
        assert "F.conv" not in code, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("strided", "x_in = i * 2 + tap_x", "x_in = i * 2"),
        ("groups", "y_in >= 0", "y_in >= -2"),
        ("transposed", "+ 1) % 2", "+ 0) % 2"),
    ],
)
def test_mutants_are_refused(name: str, old: str, new: str) -> None:
    request = {
        "source": CONVOLUTIONS[name],
        "edits": [[old, new]],
        "sets": ["ragged"],
        "styles": ["second"],
        "precision": "tf32",
    }
    (found,) = ask([request])
    assert [problem for style, code, problem in found if style.startswith("conv") and new in code if problem]


def test_a_layout_is_turned_by_a_kernel_of_its_own() -> None:
    """A program that holds a row of one channel would write it far apart."""
    source = module("self.l = nn.Conv2d(C, 17, 3)", "return self.l(x - x.mean((2, 3), keepdim=True)).relu()", IMAGE)
    for solution in write_solutions(Task("t", source, precision="tf32"), [s for s in STYLES if s.channels_last]):
        assert "turned" in solution.style
        assert "_last_ptr + row" not in solution.triton_code


def one(forward: str) -> str:
    """A convolution of a single image, whose statistics over the batch are copies of it."""
    return small("self.l = nn.Conv2d(C, 17, 3, padding=1)", forward, "torch.randn(1, C, H, W)", 16)


COPIED = {
    "before": one("return self.l(x) + x.amax(0, keepdim=True).mean(1, keepdim=True)"),
    "inside": one("y = x.sum(0); return self.l(x).relu() * y.mean()"),
    "after": one("y = self.l(x); return y.relu(), x.sum(0)"),
    "between": small(
        "self.l = nn.ConvTranspose3d(C, 17, 4, stride=2, padding=1)",
        "y = x.amin(0, keepdim=True); return self.l(x).square() + self.l(y.amax(0, keepdim=True))",
        "torch.randn(1, C, 5, 6, 7)",
    ),
}
"""Name → source in which a convolution reads what is also copied with its axes in their own order."""


def test_an_image_is_turned_beside_another_copy_of_it() -> None:
    for name, source in COPIED.items():
        solutions = write_solutions(Task("t", source, precision="tf32"), [s for s in STYLES if s.channels_last])
        assert {"channels", "conv", "last"} <= {s.style.split("-")[0] for s in solutions}, name
        assert all("turned" in s.style for s in solutions), name


@pytest.mark.slow
def test_an_image_that_is_turned_beside_another_copy_of_it_is_right() -> None:
    request = {"sets": ["full", "ragged"], "styles": ["last", "conv"], "precision": "tf32"}
    found = ask([request | {"source": source} for source in COPIED.values()])
    assert all(len(solutions) > 3 for solutions in found)
    assert not [(style, problem) for solutions in found for style, _, problem in solutions if problem]


def test_an_image_that_is_turned_keeps_its_dtype() -> None:
    """The library has no convolution of float32 with a bfloat16 weight."""
    source = small("self.l = nn.Conv2d(C, 17, 3).bfloat16()", "return self.l(x.bfloat16()).float().relu()")
    (solution,) = write_solutions(Task("t", source), [s for s in STYLES if s.name == "channels-last"])
    assert re.search(r"_last = torch\.empty\(.*dtype=torch\.bfloat16, memory_format=", solution.triton_code)


def test_tiles_fit_into_shared_memory() -> None:
    for precision in ("fp32", "tf32", "bf16"):
        for m, n, k in ((49, 8, 8), (200, 24, 27), (3136, 64, 64), (50000, 512, 512)):
            found = window_tiles(m, n, k, precision)
            assert len(set(found)) == 2
            assert all(tiles.shared_bytes(Widths.of(precision)) <= SHARED_BYTES for tiles in found)


@pytest.mark.slow
def test_a_tap_is_loaded_by_the_vector_and_multiplied_by_tensor_cores(tmp_path: Path) -> None:
    source = module("self.l = nn.Conv2d(64, 128, 3)", "return self.l(x).relu()", "torch.randn(16, 64, 64, 64)")
    (solution,) = write_solutions(Task("t", source, precision="tf32"), [s for s in STYLES if s.name == "conv"])
    code = re.sub(r"\b((?!BLOCK|GROUP)\w+): tl.constexpr", r"\1", solution.triton_code)
    compiled = compiled_product(code, tmp_path, "fp32")
    assert "wgmma.mma_async" in compiled.asm["ptx"]
    assert "cp.async.cg.shared.global" in compiled.asm["ptx"]  # 16 bytes at a time
