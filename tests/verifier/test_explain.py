"""What people are shown of a verdict."""

from __future__ import annotations

import dataclasses
import io
from xml.etree import ElementTree

from rich.console import Console

from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict
from kernrl.verifier.explain import account, size, svg


def node(name: str, kind: str, us: float) -> dict[str, object]:
    return {"name": name, "kind": kind, "bytes_moved": 12_500_000, "flops": 1.0, "us": us}


def side(*nodes: dict[str, object]) -> dict[str, object]:
    return {"nodes": list(nodes), "bytes_moved": 25_000_000, "modelled_us": 30.0, "launches": 1, "unfused": 0}


PLAN = side(node("fused<&>", "authored", 20.0)) | {
    "reference": side(node("aten.addmm.default", "library", 20.0), node("aten.gelu.default", "unfused", 10.0))
}
TIMING = Timing("measured", "NVIDIA H200", 20.0, {"eager": 30.0}, {"eager": Speedup(1.5, 1.45, 1.55, True)}, 0.0, 0.01)
GOOD = Verdict(
    Status.CORRECT, Stage.TIMING, "", "task", "0", "fp32", TIMING, [{"excess": 0.4}], PLAN, {"trace": 0.1, "compile": 0.2}
)
WRONG = Verdict(Status.WRONG, Stage.CORRECTNESS, "Wrong on the small shapes.", "task", "0", "fp32", errors=[{"excess": 7.0}])


def shown(verdict: Verdict) -> str:
    stream = io.StringIO()
    Console(file=stream, width=120).print(account(verdict))
    return stream.getvalue()


def test_a_right_one_shows_stages_graphs_and_speed() -> None:
    text = shown(GOOD)
    for part in ("correct", "compiled in 200 ms", "largest error 0.4 × its tolerance", "fused<&>", "gelu", "12.5 MB"):
        assert part in text, part
    assert "1.50× [1.45, 1.55] against eager (30.0 → 20.0 µs, measured on NVIDIA H200)" in text


def test_a_wrong_one_shows_where_it_ended_and_why() -> None:
    text = shown(WRONG)
    assert "Wrong on the small shapes." in text
    assert "✗ correctness" in " ".join(text.split())
    assert "timing" not in text


def test_modelled_time_says_so() -> None:
    timing = Timing("modelled", "NVIDIA H200", 20.0, {"eager": 30.0}, {"eager": Speedup(1.5, 1.5, 1.5, False)})
    assert "1.50× by the roofline model" in shown(Verdict(Status.CORRECT, Stage.TIMING, "", "t", "0", "fp32", timing))


def test_what_was_checked_and_what_was_not_is_shown() -> None:
    records = [{"excess": 0.4, "input_set": "ragged", "regime": r} for r in ("nominal", "large", "nominal")]
    plan = PLAN | {"floor_us": 16.0, "sets": {"ragged": {"M": 13, "N": 7}, "full": {}}}
    text = shown(dataclasses.replace(GOOD, errors=records, plan=plan))
    words = " ".join(text.split())
    assert "checked ragged (M=13, N=7) nominal, large; masks at the edges of tensors" in words
    assert "not checked full (the task's own sizes)" in words
    assert "not checked time against torch.compile" in words
    assert "1.25 × the floor (16.0 µs" in words


def test_the_svg_is_well_formed_and_holds_both_columns() -> None:
    root = ElementTree.fromstring(svg(GOOD))
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"  # else a narrow page cuts it
    words = " ".join(element.text or "" for element in root.iter())
    for part in ("fused<&>", "addmm", "gelu", "candidate: 25.0 MB, 30.0 µs modelled"):
        assert part in words, part
    assert svg(WRONG) == ""


def test_sizes_have_units() -> None:
    assert [size(n) for n in (12, 1500, 2.5e6, 3e9)] == ["12 B", "1.5 kB", "2.5 MB", "3.00 GB"]
