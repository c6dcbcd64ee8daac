"""The comparison of modelled with measured times, on numbers made up for it."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from support import ROOT


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    found = importlib.util.spec_from_file_location("bench_prices", ROOT / "scripts" / "bench_prices.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def row(task: str, style: str, modelled: float, measured: float) -> dict:
    return {"task": task, "style": style, "modelled_us": modelled, "measured_us": measured,
            "reference_modelled_us": 100.0, "reference_measured_us": 200.0}  # fmt: skip


def test_ranks_are_correlated_with_ties_shared(bench: ModuleType) -> None:
    assert bench.rank_correlation([(1, 10), (2, 20), (3, 30)]) == pytest.approx(1)
    assert bench.rank_correlation([(1, 30), (2, 20), (3, 10)]) == pytest.approx(-1)
    # scipy.stats.spearmanr([1, 2, 2, 4], [1, 3, 2, 4])
    assert bench.rank_correlation([(1, 1), (2, 3), (2, 2), (4, 4)]) == pytest.approx(0.9486832980505138)
    assert bench.rank_correlation([(1, 1), (1, 2)]) == 0


def test_misprice_is_by_style_and_against_the_reference(bench: ModuleType) -> None:
    rows = [row("a", "s", 50, 100), row("a", "t", 50, 200), row("a", "s", 25, 50), row("a", "t", 25, 100)]
    found = bench.compared(rows)
    assert found["styles"]["s"] == {"count": 2, "misprice_x": 1.0}
    assert found["styles"]["t"] == {"count": 2, "misprice_x": 2.0}
    assert found["worst_style_x"] == 2.0
    assert found["rank_correlation"]["tasks"] == 1


def test_a_task_whose_times_are_alike_has_no_order(bench: ModuleType) -> None:
    rows = [row("a", "s", 1.0 + n, 100 + n) for n in range(4)]
    assert bench.compared(rows)["rank_correlation"]["tasks"] == 0
    assert bench.compared([])["rank_correlation"]["median"] is None
