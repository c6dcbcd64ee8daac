"""What the comparison of products with cuBLAS asks and says, without a GPU."""

import bench_products as bench  # pyright: ignore[reportMissingImports]

from kernrl.tasks.solutions.from_graph.styles import write_solutions
from kernrl.verifier.base.devices import device_for


def test_every_task_has_solutions_that_write_the_product():
    for shape in ((4096, 1024, 4096), (16, 4096, 4096)):
        task = bench.task_of(*shape, "tf32")
        written = write_solutions(task, bench.DOT, algebra=False)
        assert written
        assert all("tl.dot(" in solution.triton_code for solution in written)
        assert isinstance(bench.chosen(task, device_for("H200")), bool)


def test_products_that_load_by_descriptors_are_measured_with_two_tiles():
    task = bench.task_of(8192, 8192, 8192, "tf32")
    written = [s.style for s in write_solutions(task, (*bench.DOT, *bench.SECOND), algebra=False)]
    for name in ("dot-described", "dot-described-persistent"):
        assert sum(style.startswith(f"{name}-second-") for style in written) == 1
        assert sum(style.rpartition("-")[0] == name for style in written) == 1


def test_sums_in_parts_are_measured_by_pointers_and_by_descriptors():
    task = bench.task_of(640, 16384, 1280, "bf16")
    written = [s.style for s in write_solutions(task, (*bench.DOT, *bench.SECOND), algebra=False)]
    parts = {"dot-parts-128x256", "dot-described-parts-128x256", "dot-described-parts-second-256x128"}
    assert parts <= set(written)


def test_what_counts_is_where_a_product_is_chosen():
    row = {"shape": [1, 2, 3], "precision": "tf32", "best": "dot", "wrong": [], "chosen": True, "speed": 0.9}
    others = [row | {"speed": 1.1}, row | {"speed": 0.2, "chosen": False}, row | {"speed": None, "best": None}]
    said = list(bench.lines([row, *others]))
    assert said[0] == "tf32 1 x 2 x 3: 0.90 by dot, chosen"
    assert said[3] == "tf32 1 x 2 x 3: no style fits, chosen"
    assert said[4:] == ["tf32, where chosen (2 shapes): least 0.90, median 1.00 of cuBLAS's speed"]
