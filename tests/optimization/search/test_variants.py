"""Variants change one number of a launch, and the grid with it."""

from __future__ import annotations

import difflib

from kernrl.optimization.search.variants import variants

SOURCE = """
@triton.jit
def walk(x, y, n, BLOCK: tl.constexpr):
    for i in range(0, n, BLOCK):
        pass

@triton.jit
def tile(x, y, n, BLOCK_I: tl.constexpr, BLOCK_J: tl.constexpr, SCALE: tl.constexpr):
    pass

class ModelNew(nn.Module):
    def forward(self, x):
        naïve = x  # two bytes in one column
        walk[(triton.cdiv(naïve.numel(), 1024),)](x, naïve, n, BLOCK=1024, SCALE=1024, num_warps=4)
        tile[(triton.cdiv(m, 32), triton.cdiv(n, 32))](x, y, n, BLOCK_I=32, BLOCK_J=32, num_warps=1, num_stages=2)
        return rows[(triton.cdiv(m, 8),)](x, m, ROWS=8, BLOCK=triton.next_power_of_2(m), num_warps=32)
"""


def changed(source: str) -> dict[str, list[str]]:
    """Name of each variant → the lines that it changes, as they become."""
    found = {}
    for variant in variants(source):
        lines = difflib.ndiff(source.splitlines(), variant.source.splitlines())
        found[variant.name] = [line[2:].strip() for line in lines if line.startswith("+ ")]
    return found


def test_a_block_changes_with_its_grid_and_nothing_else() -> None:
    lines = changed(SOURCE)
    assert lines["BLOCK=2048 of walk"] == [
        "walk[(triton.cdiv(naïve.numel(), 2048),)](x, naïve, n, BLOCK=2048, SCALE=1024, num_warps=4)"
    ]
    assert lines["ROWS=4 of rows"] == [
        "return rows[(triton.cdiv(m, 4),)](x, m, ROWS=4, BLOCK=triton.next_power_of_2(m), num_warps=32)"
    ]


def test_of_two_equal_blocks_each_changes_its_own_axis() -> None:
    lines = changed(SOURCE)
    [first], [second] = lines["BLOCK_I=64 of tile"], lines["BLOCK_J=16 of tile"]
    assert first.startswith("tile[(triton.cdiv(m, 64), triton.cdiv(n, 32))](x, y, n, BLOCK_I=64, BLOCK_J=32,")
    assert second.startswith("tile[(triton.cdiv(m, 32), triton.cdiv(n, 16))](x, y, n, BLOCK_I=32, BLOCK_J=16,")


PARTS = """
class ModelNew(nn.Module):
    def forward(self, x):
        part = torch.empty((triton.cdiv(D, 64), B * L))
        product[(triton.cdiv(L, 64) * triton.cdiv(D, 64), B)](x, part, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64, num_warps=4)
        settle[(triton.cdiv(B * L, 64),)](part, BLOCK=64, COUNT=triton.cdiv(D, 64), num_warps=4)
"""


def test_what_counts_tiles_outside_of_the_grid_changes_too() -> None:
    lines = changed(PARTS)
    part, product, settle = lines["BLOCK_N=32 of product"]
    assert part == "part = torch.empty((triton.cdiv(D, 32), B * L))"
    assert product.startswith("product[(triton.cdiv(L, 64) * triton.cdiv(D, 32), B)]")
    assert settle.startswith("settle[(triton.cdiv(B * L, 64),)](part, BLOCK=64, COUNT=triton.cdiv(D, 32)")
    [product] = lines["BLOCK_M=128 of product"]
    assert product.startswith("product[(triton.cdiv(L, 128) * triton.cdiv(D, 64), B)](x, part, BLOCK_M=128, BLOCK_N=64")
    [settle] = lines["BLOCK=128 of settle"]
    assert settle.startswith("settle[(triton.cdiv(B * L, 128),)](part, BLOCK=128, COUNT=triton.cdiv(D, 64)")


DESCRIBED = """
@triton.jit
def product(x_desc, w_desc, y, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    for start in range(0, K, BLOCK_K):
        x = x_desc.load([pid_m * BLOCK_M, start])
        w = w_desc.load([plane, start, pid_n * BLOCK_N]).reshape([BLOCK_K, BLOCK_N])

class ModelNew(nn.Module):
    def forward(self, x):
        rows = TensorDescriptor.from_tensor(x, [64, 64])
        columns = TensorDescriptor(w, [P, K, N], [K * N, N, 1], [1, 64, 64])
        product[(triton.cdiv(M, 64), triton.cdiv(N, 64))](rows, columns, y, M, N, K, BLOCK_M=64, BLOCK_N=64, BLOCK_K=64)
"""


def test_blocks_of_tensor_descriptors_change_with_those_of_their_kernel() -> None:
    lines = changed(DESCRIBED)
    [rows, product] = lines["BLOCK_M=128"]
    assert rows == "rows = TensorDescriptor.from_tensor(x, [128, 64])"
    assert product.endswith("BLOCK_M=128, BLOCK_N=64, BLOCK_K=64)")
    assert lines["BLOCK_N=32"][0] == "columns = TensorDescriptor(w, [P, K, N], [K * N, N, 1], [1, 64, 32])"
    [rows, columns, product] = lines["BLOCK_K=32"]
    assert rows == "rows = TensorDescriptor.from_tensor(x, [64, 32])"
    assert columns == "columns = TensorDescriptor(w, [P, K, N], [K * N, N, 1], [1, 32, 64])"
    assert product.startswith("product[(triton.cdiv(M, 64), triton.cdiv(N, 64))](rows, columns")


def test_the_inner_axis_of_a_product_is_on_no_grid() -> None:
    [product] = changed(PARTS)["BLOCK_K=32 of product"]
    assert "triton.cdiv(L, 64) * triton.cdiv(D, 64), B)](x, part, BLOCK_M=64, BLOCK_N=64, BLOCK_K=32" in product


def test_where_two_axes_have_one_text_nothing_besides_the_grid_changes() -> None:
    lines = changed(PARTS.replace("(L, 64)", "(D, 64)"))
    assert all(len(lines[name]) == 1 for name in ("BLOCK_M=32 of product", "BLOCK_N=32 of product"))


def test_knobs_stay_within_what_triton_takes() -> None:
    names = changed(SOURCE).keys()
    assert not any("num_warps=64" in n or "num_warps=0" in n or "SCALE" in n for n in names)
    assert {"num_warps=2 of tile", "num_stages=3 of tile", "num_stages=1 of tile", "num_warps=16 of rows"} <= names


def test_stages_are_added_only_where_a_loop_uses_them() -> None:
    lines = changed(SOURCE)
    assert lines["num_stages=2 of walk"][0].endswith("SCALE=1024, num_warps=4, num_stages=2)")
    assert "num_stages=2 of rows" not in lines


def test_what_launches_nothing_or_is_no_python_has_none() -> None:
    assert list(variants("class ModelNew: pass")) == []
    assert list(variants("def (")) == []
