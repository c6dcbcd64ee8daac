"""Products and row chains written from Graphs: by Triton's interpreter against float64, and compiled for Hopper."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from support import EXHAUSTIVE, TESTS
from support.front import compiler, plan_of
from support.graph_tasks import IMAGE, ROWS, ask, compiled_product, module, on_a_cpu

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.solutions.from_graph.codegen.tile_sizes import (
    SHARED_BYTES,
    Kind,
    Widths,
    steps_ahead,
    tile_sizes,
)
from kernrl.tasks.solutions.from_graph.plausible import plausible
from kernrl.tasks.solutions.from_graph.styles import STYLES, graphs_of, write_solutions
from kernrl.tasks.task import FULL, InputSet, Task
from kernrl.verifier import HardenedVerifier
from kernrl.verifier.plan.compiled import CompiledKernel
from kernrl.verifier.plan.launchable import check_compiled
from kernrl.verifier.trace.reference_spec import spec_of

HEADS = "self.l(x).view(x.shape[0], x.shape[1], 4, 12).transpose(1, 2).relu()"
PRODUCTS = {
    "tail": module("self.l = nn.Linear(C, 40)", "return F.gelu(self.l(x)) * 0.5", ROWS),
    "residual": module("self.l = nn.Linear(C, 40, bias=False)", "return self.l(x).relu() + x.mean(1, keepdim=True)", ROWS),
    "three_dims": module(
        "self.l = nn.Linear(C, 40)",
        "return torch.tanh(self.l(x)) + y[:, None, :]",
        "torch.randn(B, H, C), torch.randn(B, 40)",
        "self, x, y",
    ),
    "transposed": module("pass", "return F.silu(x.T @ y.T)", "torch.randn(C, H), torch.randn(W, C)", "self, x, y"),
    "attention": module(
        "pass",
        "return torch.softmax(x @ y.transpose(-1, -2) * 0.2, -1)",
        "torch.randn(B, 3, H, C), torch.randn(B, 3, W, C)",
        "self, x, y",
    ),
    "shared": module("pass", "return (x @ y).sigmoid()", "torch.randn(B, H, C), torch.randn(1, C, W)", "self, x, y"),
    "one_by_one": module(
        "self.l = nn.Conv2d(C, 16, 1); self.n = nn.BatchNorm2d(16)", "return F.mish(self.n(self.l(x))) + 1", IMAGE
    ),
    "row_max": module("self.l = nn.Linear(C, 300)", "return self.l(x).amax(1) * 2 + 1", ROWS),
    "row_logsumexp": module("self.l = nn.Linear(C, 300)", "return torch.logsumexp(self.l(x), 1, keepdim=True).relu()", ROWS),
    "column_mean": module("self.l = nn.Linear(C, 40)", "return torch.tanh(self.l(x)).mean(0)", "torch.randn(B * 30, C)"),
    "group_norm": module("self.l = nn.Linear(C, 48); self.n = nn.GroupNorm(4, 48)", "return F.silu(self.n(self.l(x)))", ROWS),
    "heads": module("self.l = nn.Linear(C, 48)", f"return {HEADS}", "torch.randn(B, H, C)"),
    "chain": module("self.a = nn.Linear(C, 48); self.b = nn.Linear(48, C)", "return x + self.b(F.gelu(self.a(x)))", ROWS),
    "einsum": module(
        "self.w = nn.Parameter(torch.randn(C, 16))", "return torch.einsum('bchw,co->bohw', x, self.w).relu()", IMAGE
    ),
    "deep": module("self.l = nn.Linear(2000, C); self.n = nn.LayerNorm(C)", "return self.n(self.l(x))", "torch.randn(H, 2000)"),
    "many": module("self.l = nn.Linear(C, 1100)", "return self.l(x).relu() * 0.5", "torch.randn(1030, C)"),
    "returned": module("self.l = nn.Linear(C, 40)", "y = self.l(x); return y, y.amax(1)", ROWS),
}
"""Name → source of a product with another kind of tail."""
LEFT_ALONE = {
    "turned": module("pass", "y = x @ x.T; return y + y.T", "torch.randn(H, C)"),
    "in_part": module("self.l = nn.Linear(C, 48)", "a, b = self.l(x).chunk(2, -1); return a * b.sigmoid()", ROWS),
    "vector": module("self.l = nn.Linear(C, 1)", "return self.l(x).relu()", ROWS),
}
"""What needs more of a product than a tile has."""
CHAINS = {
    "short_rows": module("self.n = nn.LayerNorm(C)", "return (self.n(x).softmax(1) + x).relu()", "torch.randn(4300, C)"),
    "one_row_a_step": module(
        "pass", "y = F.rms_norm(x, (x.shape[1],)); return y * y.amax(1, keepdim=True)", "torch.randn(300, 1100)"
    ),
    "long_rows": module("pass", "return x.softmax(1) + x / x.norm(dim=1, keepdim=True)", "torch.randn(2, 20000)"),
}
SAMPLED = ("attention", "one_by_one", "row_logsumexp", "group_norm", "deep", "many")
"""Judged every time; KERNRL_EXHAUSTIVE=1 judges all."""


JUDGED = [*PRODUCTS, *CHAINS] if EXHAUSTIVE else [*SAMPLED, *CHAINS]


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED)
def test_products_and_chains_are_right_in_every_style(name: str) -> None:
    # a program takes several tiles, or rows, at the full sizes alone
    sets = ["full"] if name in ("many", *CHAINS) else ["full", "ragged"] if EXHAUSTIVE else ["ragged"]
    style = "chain" if name in CHAINS else "dot"
    request = {"source": (PRODUCTS | CHAINS)[name], "sets": sets, "styles": [style]}
    # written for long rows, a chunk at a time: thousands of short ones would be interpreted one by one
    but = ["online"] if name == "short_rows" else []
    (found,) = ask([request | {"but": but, "precision": "fp32" if name in CHAINS else "tf32"}])
    assert found
    assert not [(style, problem) for style, _, problem in found if problem]


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_a_tail_that_needs_more_than_a_tile_is_left_to_the_library(name: str) -> None:
    assert not write_solutions(Task(name, LEFT_ALONE[name], precision="tf32"), styles("dot"))


@pytest.mark.slow
def test_every_way_to_write_them_appears() -> None:
    tasks = {name: with_input_sets(Task(name, source, precision="tf32")) for name, source in PRODUCTS.items() if name in JUDGED}
    written = [solution for task in tasks.values() for solution in write_solutions(task, styles("dot"))]
    for name, source in CHAINS.items():
        written += write_solutions(with_input_sets(Task(name, source)), styles("chain"))
    words = {word for solution in written for word in solution.style.split("-")}
    assert {"second", "persistent", "parts", "stats", "loop", "online"} <= words
    for text in ("settle_kernel", "num_stages=3):", "flatten=True", "tl.static_range(1, ", "plane = ", "GROUP_M=8"):
        assert any(text in solution.triton_code for solution in written), text


@pytest.mark.slow
def test_windows_are_read_right_where_the_last_one_leaves_rows_over() -> None:
    source = (TESTS / "foreign" / "leaf_lesson.py").read_text(encoding="utf-8")
    # 31 pixels leave 27 behind the first convolution; at every set of the task it is an even number
    (found,) = ask([{"source": source, "sets": [], "constants": {"leaves": 2, "side": 31}}])
    assert {"unfused", "channels-last-turned"} <= {style for style, _, _ in found}
    assert not [(style, problem) for style, _, problem in found if problem]


def test_float32_products_say_how_they_multiply() -> None:
    for precision, said in (("fp32", '"ieee"'), ("tf32", '"tf32"'), ("bf16", None)):
        code = write_solutions(Task("t", PRODUCTS["tail"], precision=precision), styles("dot"))[0].triton_code
        found = re.findall(r"input_precision=(\S+)\)", code)
        assert found == ([said] if said else [])


def test_argmax_is_given_one_dimension() -> None:
    source = module("pass", "return torch.argmax(x.relu() * 2, 1), x + 1", ROWS)
    assert all("torch.argmax(v1, dim=1, " in s.triton_code for s in write_solutions(Task("t", source), styles("fused")))


def styles(word: str) -> list:
    return [s for s in STYLES if word in s.name.split("-")]


def test_tiles_fit_into_shared_memory() -> None:
    rng = Random(0)
    for _ in range(300):
        m, n, k = (int(2 ** rng.uniform(3, 15)) for _ in range(3))
        for precision in ("fp32", "tf32", "bf16"):
            for kind in get_args(Kind):
                for tiles in tile_sizes(m, n, k, 1, precision, kind):
                    assert tiles.shared_bytes(Widths.of(precision)) <= SHARED_BYTES
                    assert tiles.split * tiles.k <= k or tiles.split == 1
        assert tile_sizes(m, n, k, 1, "bf16")


def test_a_tile_has_room_for_operands_and_tails_of_any_width() -> None:
    for widths in (Widths(2, 2, 4), Widths(2, 4, 2), Widths(4, 2, 4), Widths(4, 4, 4)):
        for kind in get_args(Kind):
            found = tile_sizes(15_000, 3200, 3200, 1, "bf16", kind, widths=widths)
            assert found or kind == "split"
            assert all(tiles.shared_bytes(widths) <= SHARED_BYTES for tiles in found)
    best = tile_sizes(15_000, 3200, 3200, 1, "bf16", "persistent")[0]  # what fits stays as large as it is
    assert (best.m, best.n, best.stages) == (128, 256, 3)


def test_a_walk_loads_no_further_ahead_than_there_is_room() -> None:
    assert [steps_ahead(3, 4 * loads * 4096) for loads in (1, 6, 7, 13, 14)] == [3, 3, 2, 2, 0]
    assert steps_ahead(0, 4096) == 0


FEATURES = "self.l = nn.Linear(C, 3200, bias=False); self.w = nn.Parameter(torch.randn(3200))"
LARGE = {
    "vector_apart": module(FEATURES, "return self.l(x) + (x + self.w)", "torch.randn(B, C)", B=15_000, C=3200),
    "vector": module(FEATURES, "return (self.l(x) + self.w) + x", "torch.randn(B, C)", B=15_000, C=3200),
    "operand_of_the_library": module(
        "pass",
        "return (x @ torch.cumsum(y.mean(0), 0)).relu()",
        "torch.randn(B, C), torch.randn(8, C, 4096)",
        "self, x, y",
        B=15_000,
        C=3200,
    ),
    "tail_of_the_library": module(
        FEATURES,
        "return (self.l(x) + torch.cumsum(y.mean(0), 0)).relu()",
        "torch.randn(B, C), torch.randn(8, B, 3200)",
        "self, x, y",
        B=15_000,
        C=3200,
    ),
}
"""Products whose tails or operands may take another room under bf16 than their shapes say."""


LONG_WALK = module(
    "pass",
    "return (x0 + x1 + x2 + x3 + x4 + x5 + x6 + x7).softmax(1)",
    ", ".join(["torch.randn(H, C)"] * 8),
    ", ".join(["self", *(f"x{i}" for i in range(8))]),
    H=300,
    C=100_000,
)
"""Rows of many tensors, walked over."""


def tile_of(name: str, style: str) -> list[int]:
    """BLOCK_M, BLOCK_N, BLOCK_K and stages of a product under bf16."""
    (solution,) = write_solutions(Task(name, LARGE[name], precision="bf16"), [s for s in STYLES if s.name == style])
    found = [re.search(rf"\b{size}=(\d+)", solution.triton_code) for size in ("BLOCK_M", "BLOCK_N", "BLOCK_K")]
    stages = re.search(r"num_stages=(\d+)", solution.triton_code.partition("product_kernel[")[2])
    return [int(m[1]) for m in (*found, stages) if m]


def test_the_tile_of_a_persistent_product_depends_on_what_its_tail_reads() -> None:
    assert tile_of("vector", "dot-persistent") == [128, 256, 64, 3]
    assert tile_of("vector_apart", "dot") == [128, 256, 64, 3]
    assert tile_of("vector_apart", "dot-persistent") == [128, 128, 64, 4]


def test_what_the_library_makes_of_means_takes_the_room_of_the_tasks_precision() -> None:
    for name, style in (("operand_of_the_library", "dot"), ("tail_of_the_library", "dot-persistent")):
        assert tile_of(name, style) == [128, 256, 64, 3], name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision", "style"), [*((name, "bf16", "dot") for name in LARGE), ("walk", "tf32", "chain")]
)
def test_large_kernels_can_be_launched_on_hopper(name: str, precision: str, style: str) -> None:
    task = Task(name, LARGE.get(name, LONG_WALK), precision=precision)
    spec = spec_of(task, InputSet(FULL), precision, "sm_90")
    wanted = [s for s in STYLES if s.name in (style, f"{style}-persistent", f"{style}-online")]
    for solution in write_solutions(task, wanted):
        kernels = plan_of(solution.triton_code, spec).kernels
        for made in compiler().compile(kernels, "sm_90"):
            assert isinstance(made, CompiledKernel), made
            assert check_compiled(made, made.parameters) is None, solution.style


def test_small_products_are_cut_along_their_depth() -> None:
    parts = tile_sizes(64, 512, 8192, 1, "tf32", "split")
    assert parts
    assert parts[0].split >= 4
    assert not tile_sizes(8192, 8192, 8192, 1, "tf32", "split")


def test_the_cost_model_prefers_a_fused_softmax_and_the_library_for_large_products() -> None:
    from kernrl.verifier.base.devices import device_for

    h200 = device_for("H200")
    assert h200 is not None

    def first(rows: int, depth: int, columns: int, tail: str) -> str:
        source = module(f"self.l = nn.Linear({depth}, {columns})", f"return {tail}", f"torch.randn({rows}, {depth})")
        graphs = graphs_of(Task("t", source))
        return plausible(graphs, h200.rates("tf32"), precision="tf32")[0][0].name

    assert first(16384, 256, 200, "self.l(x).softmax(1)").startswith("dot")
    assert not first(8192, 8192, 8192, "self.l(x).relu()").startswith("dot")


@pytest.mark.slow
def test_the_product_of_a_tile_is_one_of_the_tensor_cores(tmp_path: Path) -> None:
    source = module("self.l = nn.Linear(1024, 2048)", "return F.relu(self.l(x)) + 1", "torch.randn(4096, 1024)")
    (solution, *_) = write_solutions(Task("t", source, precision="bf16"), styles("dot"))
    compiled = compiled_product(solution.triton_code, tmp_path, "bf16")
    assert "wgmma.mma_async" in compiled.asm["ptx"]
    assert "cp.async" in compiled.asm["ptx"]
    assert compiled.metadata.shared <= SHARED_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16"])
def test_the_verifier_takes_them(precision: str, cpu_verifier: HardenedVerifier) -> None:
    names = PRODUCTS if EXHAUSTIVE else ("attention", "row_max") if precision == "bf16" else ("tail",)
    pairs = []
    for name in names:
        task = Task(name, PRODUCTS[name], precision=precision)
        small = on_a_cpu(task)
        assert small is not None
        pairs += [(small, s.triton_code) for s in write_solutions(with_input_sets(task), styles("dot"))]
    assert not [(pairs[i][0].id, v.status, v.reason) for i, v in cpu_verifier.verify_many(pairs) if v.status != "correct"]
