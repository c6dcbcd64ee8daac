"""Products that load by tensor descriptors: against float64 in Triton's interpreter, by the verifier, compiled for Hopper."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from support import EXHAUSTIVE
from support.graph_tasks import ask, compiled_product, module, on_a_cpu

from kernrl.tasks.graph.input_sets import with_input_sets
from kernrl.tasks.graph.sample import Draft, product, sample
from kernrl.tasks.graph.writing.hands import Hand
from kernrl.tasks.graph.writing.write import write
from kernrl.tasks.solutions.from_graph.codegen.described_products import Tail, described_tiles
from kernrl.tasks.solutions.from_graph.codegen.tile_sizes import MULTIPROCESSORS, SHARED_BYTES, Kind
from kernrl.tasks.solutions.from_graph.plausible import modelled_s, plausible
from kernrl.tasks.solutions.from_graph.styles import STYLES, TAUGHT, graphs_of, write_solutions
from kernrl.tasks.task import Task
from kernrl.verifier import HardenedVerifier
from kernrl.verifier.base.devices import device_for

DESCRIBED = [style for style in STYLES if style.product and style.product.described]
PARTS = [style for style in DESCRIBED if style.name == "dot-described-parts"]
TWO = "torch.randn(H, C), torch.randn(H, 136)"
TWICE = "y = self.l(x); return y.amax(1), (y * 2).mean(0)"
"""The product is read by a kernel that is no tail of it, too."""


def source(init: str, forward: str, inputs: str = "torch.randn(H, C)", arguments: str = "self, x", **sizes: int) -> str:
    """A task whose rows are aligned at its full sizes, and at others are not."""
    return module(init, forward, inputs, arguments, **{"C": 40, "H": 72, "W": 88} | sizes)


CASES = {
    "bias": source("self.l = nn.Linear(C, 136)", "return F.gelu(self.l(x))"),
    "second": source("self.l = nn.Linear(C, 136)", "return self.l(x).relu() + y", TWO, "self, x, y"),
    "three_dims": source("self.l = nn.Linear(C, 40)", "return torch.tanh(self.l(x))", "torch.randn(B, H, C)"),
    "row_max": source("self.l = nn.Linear(C, 304)", "return self.l(x).amax(1) * 2 + 1"),
    "softmax": source("self.l = nn.Linear(C, 200)", "return self.l(x).softmax(1)"),
    "column_mean": source("self.l = nn.Linear(C, 40)", "return torch.tanh(self.l(x)).mean(0)", "torch.randn(B * 40, C)"),
    "group_norm": source("self.l = nn.Linear(C, 48); self.n = nn.GroupNorm(4, 48)", "return F.silu(self.n(self.l(x)))"),
    "returned": source("self.l = nn.Linear(C, 40)", "y = self.l(x); return y, y.amax(1)"),
    "chain": source("self.a = nn.Linear(C, 48); self.b = nn.Linear(48, C)", "return x + self.b(F.gelu(self.a(x)))"),
    "square": source("pass", "return torch.tanh(x @ x.T) * 0.5"),
    "attention": source(
        "pass", "return (x @ y.transpose(1, 2) * 0.2).softmax(-1)", "torch.randn(B, H, C), torch.randn(B, W, C)", "self, x, y"
    ),
    "shared": source(
        "pass", "return (x @ y.T).sigmoid()", "torch.randn(B, H, C), torch.randn(W, C)", "self, x, y"
    ),
    "deep": source("self.l = nn.Linear(2000, C); self.n = nn.LayerNorm(C)", "return self.n(self.l(x))", "torch.randn(H, 2000)"),
}  # fmt: skip
"""Name → source of a product whose depth is innermost in both operands."""
TURNED = {
    "rows": source("pass", "return (x @ y).relu()", "torch.randn(H, C), torch.randn(C, W)", "self, x, y"),
    "both": source("pass", "return F.silu(x.T @ y.T)", "torch.randn(C, H), torch.randn(W, C)", "self, x, y"),
    "planes": source("pass", "return (x @ y).sigmoid()", "torch.randn(B, H, C), torch.randn(B, C, W)", "self, x, y"),
    "one_by_one": source("self.l = nn.Conv2d(C, 16, 1)", "return F.mish(self.l(x)) + 1", "torch.randn(B, C, 8, 9)"),
}
"""Operands whose depth is not innermost: tensor cores read them in half precision only."""
DEEP = {
    "bias": source("self.l = nn.Linear(C, 139)", "return F.gelu(self.l(x))", C=2056, H=75),
    "norm": source(
        "self.l = nn.Linear(C, 139); self.n = nn.LayerNorm(139)", "return self.n(self.l(x) + x.mean(1, keepdim=True))",
        C=1032, H=75,
    ),
    "planes": source(
        "pass", "return (x @ y.transpose(1, 2)).tanh()", "torch.randn(3, H, C), torch.randn(3, W, C)", "self, x, y",
        C=1040, H=75, W=91,
    ),
    "both_turned": source(
        "pass", "return F.silu(x.T @ y.T)", "torch.randn(C, H), torch.randn(W, C)", "self, x, y", C=1040
    ),
}  # fmt: skip
"""Sums that are cut: their parts take steps in turn, and not all as many, the last of which goes beyond the depth."""
MANY = {
    "bias": source("self.l = nn.Linear(C, 1544)", "return self.l(x).relu() * 0.5", "torch.randn(1544, C)"),
    "second": source(
        "self.l = nn.Linear(C, 1544)", "return self.l(x) * y", "torch.randn(1544, C), torch.randn(1544, 1544)", "self, x, y"
    ),
    "row_max": source("self.l = nn.Linear(C, 1544)", "return self.l(x).relu().amax(1)", "torch.randn(1544, C)"),
    "kept": source("self.l = nn.Linear(C, 1544, bias=False)", TWICE, "torch.randn(1544, C)"),
}
"""More tiles than there are multiprocessors."""


def wrong(source: str, precision: str, sets: list[str]) -> tuple[set[str], list[tuple[str, str]]]:
    """(the words of the styles that a source is written in, what is wrong with which)."""
    (found,) = ask([{"source": source, "sets": sets, "styles": ["described"], "precision": precision}])
    words = {word for style, _, _ in found for word in style.split("-")}
    return words, [(style, problem) for style, _, problem in found if problem]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"] if EXHAUSTIVE else ["tf32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_they_are_right_at_every_size(name: str, precision: str) -> None:
    words, problems = wrong(CASES[name], precision, ["full", "small", "ragged"])
    assert "described" in words
    assert not problems


@pytest.mark.slow
@pytest.mark.parametrize("name", TURNED)
def test_operands_whose_depth_is_not_innermost_are_turned_in_half_precision(name: str) -> None:
    words, problems = wrong(TURNED[name], "fp16", ["full", "small", "ragged"])
    assert "described" in words
    assert not problems
    assert not write_solutions(Task(name, TURNED[name], precision="tf32"), DESCRIBED)


@pytest.mark.slow
@pytest.mark.parametrize("name", MANY if EXHAUSTIVE else ["second", "kept"])
def test_programs_that_take_tile_after_tile_are_right(name: str) -> None:
    words, problems = wrong(MANY[name], "bf16", ["full"])
    assert "persistent" in words
    assert not problems


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [(name, p) for name in DEEP for p in (("fp16",) if name == "both_turned" else ("tf32", "bf16"))],
)
def test_parts_of_a_sum_are_right_at_depths_that_they_do_not_divide(name: str, precision: str) -> None:
    (solution,) = write_solutions(Task(name, DEEP[name], precision=precision), PARTS)
    numbers = {word: int(n) for word, n in re.findall(r"(SPLIT|BLOCK_K)=(\d+)", solution.triton_code)}
    split, step = numbers["SPLIT"], numbers["BLOCK_K"]
    assert split > 2
    # one step more than parts, and a piece of one; at the derived sets most parts have none
    sizes = {"C": step * (split + 1) + 5, "H": 67} | ({"W": 65} if "W = " in DEEP[name] else {})
    request = {"source": DEEP[name], "styles": ["described"], "but": ["persistent"], "precision": precision}
    (found,) = ask([request | {"sets": ["full", "small", "ragged"], "constants": sizes}])
    assert any("parts" in style.split("-") for style, _, _ in found)
    assert not [(style, problem) for style, _, problem in found if problem]


def start(d: Draft) -> None:
    d.x = d.input(*d.rng.choice(((24, 32), (72, 136), (3, 16, 24), (2, 4, 16, 8))))


@pytest.mark.slow
def test_random_products_are_right() -> None:
    requests = []
    for seed in range(40 if EXHAUSTIVE else 8):
        rng = Random(f"described/{seed}")
        graph = sample(rng, rng.randint(1, 4), start=start, first=product, most=1 << 16)
        request = {"source": write(graph, Hand.draw(rng), rng), "styles": ["described"], "sets": ["full", "ragged"]}
        requests.append(request | {"precision": rng.choice(("tf32", "bf16"))})
    found = [solution for solutions in ask(requests) for solution in solutions]
    assert len(found) >= len(requests) // 4
    assert not [(style, problem, code) for style, code, problem in found if problem]


@pytest.mark.parametrize(
    ("why", "precision", "text"),
    [
        ("no tensor cores", "fp32", CASES["bias"]),
        ("rows begin between 16 bytes", "bf16", source("self.l = nn.Linear(C, 40)", "return self.l(x).relu()", C=36)),
        ("a slice", "tf32", source("self.l = nn.Linear(20, 40)", "return self.l(x[:, :20]).relu()")),
        ("fewer than a tile", "tf32", source("self.l = nn.Linear(C, 4)", "return self.l(x).relu()")),
        ("one of its operands is repeated", "tf32", source(
            "pass", "return (x[:, None] @ y.transpose(-1, -2)).relu()",
            "torch.randn(B, H, C), torch.randn(B, 3, W, C)", "self, x, y",
        )),
    ],
)  # fmt: skip
def test_what_they_have_nothing_to_say_about(why: str, precision: str, text: str) -> None:
    assert not write_solutions(Task(why, text, precision=precision), DESCRIBED)


def test_numbers_stand_in_the_text() -> None:
    task = Task("t", source("self.l = nn.Linear(C, 4096)", "return F.relu(self.l(x))", C=1024, H=8192), precision="bf16")
    plain, persistent = (s.triton_code for s in write_solutions(task, DESCRIBED))
    assert "TensorDescriptor.from_tensor(x, [128, 64])" in plain
    assert "TensorDescriptor.from_tensor(self.l.weight, [256, 64])" in plain
    assert "BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, GROUP_M=8, num_warps=8, num_stages=4" in plain
    assert "tl.load(x0" not in plain
    assert "product_kernel[(min(132, " in persistent
    assert "tl.num_programs(0), flatten=True):" in persistent
    assert "for half in tl.static_range(2):" in persistent
    parts = write_solutions(Task("t", LARGE["row_max"], precision="tf32"), DESCRIBED)[1].triton_code
    assert "BLOCK_M=128, BLOCK_N=256, BLOCK_K=32, GROUP_M=8, num_warps=8, num_stages=4" in parts  # there is no tile to store


def test_rows_are_padded_where_other_sizes_than_the_full_ones_leave_them_between_16_bytes() -> None:
    task = Task("t", CASES["bias"], precision="bf16")
    assert "pad(" not in write_solutions(task, DESCRIBED)[0].triton_code
    assert "pad(x, (0, -N % 8)) if N % 8 else x, [" in write_solutions(with_input_sets(task), DESCRIBED)[0].triton_code


def test_nano_is_not_taught_them() -> None:
    assert len(DESCRIBED) == 3
    assert not set(DESCRIBED) & set(TAUGHT)


def test_the_cost_model_puts_them_before_products_that_load_by_pointers() -> None:
    h200 = device_for("H200")
    assert h200 is not None
    text = source("self.l = nn.Linear(C, 200)", "return self.l(x).softmax(1)", C=4096, H=16384)
    styles = [style for style in STYLES if style.name in ("dot", "dot-described")]
    order = plausible(graphs_of(Task("t", text)), h200.rates("tf32"), precision="tf32", styles=styles)
    assert [style.name for style, _ in order] == ["dot-described", "dot"]


def test_sums_are_cut_where_that_fills_waves_that_whole_tiles_do_not() -> None:
    shapes = {  # rows, columns, depth → parts of a tile of 128 x 256
        (1024, 1280, 8192): 3,  # 40 tiles: 120 programs on 132 multiprocessors
        (640, 1280, 16384): 5,  # 25 tiles
        (2048, 1280, 8192): 3,  # 80 tiles, which are two waves
        (512, 1536, 4096): 5,
        (256, 4096, 4096): 4,
        (512, 512, 16384): 16,
    }
    for (m, n, k), parts in shapes.items():
        found = described_tiles(m, n, k, 1, "bf16", "split", (0, 0), "halves")
        assert [tiles.split for tiles in found if (tiles.m, tiles.n) == (128, 256)] == [parts]
        programs = -(-m // 128) * -(-n // 256) * parts
        assert programs / (MULTIPROCESSORS * -(-programs // MULTIPROCESSORS)) > 0.9
        assert all(tiles.split * tiles.k * 4 <= k for tiles in found)
    # at the last one smaller tiles gain by parts, and stay behind whole ones of 128 x 256
    for m, n, k in ((8192, 8192, 8192), (1024, 4096, 4096), (32768, 512, 2048), (4096, 4096, 64), (1024, 2432, 2304)):
        assert not described_tiles(m, n, k, 1, "bf16", "split", (0, 0), "halves")


@pytest.mark.parametrize("kind", ["plain", "persistent", "split"])
def test_one_program_a_tile_takes_more_rows_than_columns_under_tf32_and_parts_always_do(kind: Kind) -> None:
    m, n, k = (1024, 1280, 8192) if kind == "split" else (8192, 8192, 1024)
    first = {p: described_tiles(m, n, k, 1, p, kind, (0, 0), "halves")[0] for p in ("tf32", "bf16")}
    assert (first["bf16"].m, first["bf16"].n) == ((256, 128) if kind == "split" else (128, 256))
    assert (first["tf32"].m, first["tf32"].n) == ((128, 256) if kind == "persistent" else (256, 128))


def test_all_parts_are_counted_in_32_bits() -> None:
    m, n, k = 20_400, 38_200, 1 << 20  # 3 parts would take the fewest clocks
    found = described_tiles(m, n, k, 1, "bf16", "split", (0, 0), "halves")
    assert found
    assert all(m * n * tiles.split < 1 << 31 for tiles in found)


def test_planes_fill_waves_too() -> None:
    assert not described_tiles(1024, 1280, 8192, 40, "bf16", "split", (0, 0), "halves")  # 1,600 tiles
    (tiles, *_) = described_tiles(512, 512, 4096, 5, "bf16", "split", (0, 0), "halves")
    assert (tiles.m, tiles.n, tiles.split) == (256, 128, 3)  # as 40 tiles of one plane


@pytest.mark.parametrize(
    ("why", "precision", "text"),
    [
        ("no tensor cores", "fp32", DEEP["bias"]),
        ("others read the product", "bf16", source("self.l = nn.Linear(C, 136, bias=False)", TWICE, C=2056)),
        ("a short sum", "bf16", CASES["bias"]),
        ("tiles fill a wave", "bf16", source("self.l = nn.Linear(C, 4096)", "return self.l(x).relu()", C=2048, H=1024)),
        ("rows begin between 16 bytes", "bf16", source("self.l = nn.Linear(C, 139)", "return self.l(x).relu()", C=2052)),
        ("turned operands of 32 bits", "tf32", DEEP["both_turned"]),
    ],
)  # fmt: skip
def test_sums_are_left_whole(why: str, precision: str, text: str) -> None:
    assert not write_solutions(Task(why, text, precision=precision), PARTS)


DEEP_LINEAR = source("self.l = nn.Linear(C, 1280, bias=False)", "return self.l(x).relu()", C=16384, H=640)


def test_the_cost_model_knows_what_slows_a_product_down() -> None:
    """A tail of many functions, and under tf32 a second operand whose columns are innermost."""
    h200 = device_for("H200")
    assert h200 is not None

    def seconds(forward: str, precision: str, made: str = "self.l = nn.Linear(C, 1280, bias=False)") -> float:
        text = source(made, f"return {forward}", C=4096, H=4096)
        (dot,) = [style for style in STYLES if style.name == "dot"]
        return modelled_s(graphs_of(Task("t", text, precision=precision)), dot, h200.rates(precision), precision=precision)

    weight = "self.l = nn.Parameter(torch.randn(C, 1280))"
    assert seconds("torch.erf(torch.exp(self.l(x)))", "bf16") > seconds("self.l(x).relu()", "bf16")
    assert seconds("(x @ self.l).relu()", "tf32", weight) > 1.5 * seconds("self.l(x).relu()", "tf32")
    assert seconds("(x @ self.l).relu()", "bf16", weight) == pytest.approx(seconds("self.l(x).relu()", "bf16"))


def test_the_cost_model_takes_the_librarys_best_tiles_for_its_products() -> None:
    """So a product of the library and one that is written are told apart by what comes after it."""
    h200 = device_for("H200")
    assert h200 is not None
    for shape, written in (((32_768, 512, 512), True), ((8192, 8192, 8192), False), ((64, 4096, 4096), False)):
        rows, depth, columns = shape
        text = source(f"self.l = nn.Linear(C, {columns}, bias=False)", "return self.l(x).relu()", C=depth, H=rows)
        order = plausible(graphs_of(Task("t", text, precision="bf16")), h200.rates("bf16"), precision="bf16")
        assert (order[0][0].product is not None) == written, shape


def test_the_cost_model_puts_parts_before_whole_tiles_and_parts_that_load_by_pointers() -> None:
    h200 = device_for("H200")
    assert h200 is not None
    styles = [style for style in STYLES if style.name in ("dot", "dot-parts", "dot-described", "dot-described-parts")]
    for precision in ("tf32", "bf16"):
        graphs = graphs_of(Task("t", DEEP_LINEAR, precision=precision))
        order = plausible(graphs, h200.rates(precision), precision=precision, styles=styles)
        assert order[0][0].name == "dot-described-parts"


TAILS: tuple[Tail, ...] = ("halves", "whole", "parts")


def test_stages_fit_into_shared_memory_beside_what_is_stored() -> None:
    rng = Random(0)
    for _ in range(300):
        m, n, k = (int(2 ** rng.uniform(3, 15)) for _ in range(3))
        for precision, item, width in (("tf32", 4, 4), ("bf16", 2, 2), ("bf16", 2, 4)):
            for tail in TAILS:
                for tiles in described_tiles(m, n, k, 1, precision, "persistent", (0, 0), tail, width):
                    stages = (tiles.m + tiles.n) * tiles.k * item * tiles.stages
                    columns = {"parts": 0, "whole": tiles.n, "halves": tiles.n if tiles.n < 128 else tiles.n // 2}[tail]
                    assert stages + tiles.m * columns * width < SHARED_BYTES
                    assert tiles.stages >= 2
        assert described_tiles(m, n, k, 1, "bf16", "plain", (0, 0), "whole")


LARGE = {
    "bias": source("self.l = nn.Linear(C, 4096)", "return F.gelu(self.l(x))", C=2048, H=8192),
    "second": source(
        "self.l = nn.Linear(C, 4096)", "return self.l(x).relu() + y", "torch.randn(H, C), torch.randn(H, 4096)", "self, x, y",
        C=2048, H=8192,
    ),
    "row_max": source("self.l = nn.Linear(C, 4096)", "return F.relu(self.l(x)).amax(1)", C=2048, H=8192),
    "vector_first": source(
        "self.l = nn.Linear(C, 4096, bias=False); self.p = nn.Parameter(torch.randn(4096))", "return self.l(x) * (y + self.p)",
        "torch.randn(H, C), torch.randn(H, 4096)", "self, x, y", C=2048, H=8192,
    ),
    "group_norm": source(
        "self.l = nn.Linear(C, 4096); self.n = nn.GroupNorm(32, 4096)", "return F.silu(self.n(self.l(x)))", C=2048, H=8192
    ),
    "softmax": source("self.l = nn.Linear(C, 200)", "return self.l(x).softmax(1)", C=2048, H=8192),
    "kept": source("self.l = nn.Linear(C, 4096, bias=False)", TWICE, C=2048, H=8192),
}  # fmt: skip
ELEMENTS = {"tf32": "fp32", "bf16": "bf16", "fp16": "fp16"}


def stack_bytes(cubin: bytes, folder: Path) -> int:
    """What a thread keeps in memory for want of registers."""
    from triton import knobs

    (folder / "kernel.cubin").write_bytes(cubin)
    command = [knobs.nvidia.cuobjdump.path, "-res-usage", folder / "kernel.cubin"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"STACK:(\d+)", said)))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ELEMENTS)
@pytest.mark.parametrize("name", LARGE if EXHAUSTIVE else ["vector_first", "second", "row_max", "group_norm"])
def test_hopper_loads_them_by_itself_and_keeps_them_in_registers(name: str, precision: str, tmp_path: Path) -> None:
    written = write_solutions(Task(name, LARGE[name], precision=precision), DESCRIBED, algebra=False)
    assert len(written) == (1 if name in ("softmax", "group_norm") else 2)
    for i, solution in enumerate(written):
        (folder := tmp_path / str(i)).mkdir()
        compiled = compiled_product(solution.triton_code, folder, ELEMENTS[precision])
        ptx = compiled.asm["ptx"]
        assert "cp.async.bulk.tensor" in ptx
        assert "wgmma.mma_async" in ptx
        assert "wgmma.wait_group.sync.aligned 1;" in ptx  # a step's product is under way while the next one's is begun
        assert stack_bytes(compiled.asm["cubin"], folder) == 0
        assert compiled.metadata.shared <= SHARED_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("precision", ELEMENTS)
def test_parts_are_summed_by_the_same_loop(precision: str, tmp_path: Path) -> None:
    styles = [*PARTS, *(replace(s, product=replace(s.product, rank=1)) for s in PARTS if s.product)]
    written = write_solutions(Task("t", DEEP_LINEAR, precision=precision), styles, algebra=False)
    assert {solution.style.rpartition("-")[2] for solution in written} == {"128x256", "256x128"}
    for i, solution in enumerate(written):
        (folder := tmp_path / str(i)).mkdir()
        compiled = compiled_product(solution.triton_code, folder, ELEMENTS[precision])
        *_, loop = compiled.asm["ttgir"].partition("scf.for")
        loop, _, behind = loop.partition("scf.yield")
        assert "async_tma_copy_global_to_local" in loop
        assert "pendings = 1" in loop  # a step's product is under way while the next one's is begun
        assert "tt.store" not in loop
        assert "tt.store" in behind
        assert stack_bytes(compiled.asm["cubin"], folder) == 0
        assert compiled.metadata.shared <= SHARED_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("precision", ELEMENTS if EXHAUSTIVE else ["tf32", "bf16"])
def test_the_verifier_takes_them(precision: str, cpu_verifier: HardenedVerifier) -> None:
    cases = CASES | {f"deep_{name}": text for name, text in DEEP.items() if name != "both_turned"}
    some = ("bias", "attention", "deep_bias") if precision == "bf16" else ("second", "group_norm", "deep_planes")
    names = cases if EXHAUSTIVE else some
    pairs = []
    for name in names:
        task = Task(name, cases[name], precision=precision)
        small = on_a_cpu(task)
        assert small is not None
        pairs += [(small, s.triton_code) for s in write_solutions(with_input_sets(task), DESCRIBED)]
    assert len(pairs) >= len(names)
    assert not [(pairs[i][0].id, v.status, v.reason) for i, v in cpu_verifier.verify_many(pairs) if v.status != "correct"]
