"""The sizing model: it follows its inputs. The page shows what it gives, and what was measured."""

import json
from dataclasses import replace

import pytest
import scaling_table  # pyright: ignore[reportMissingImports]
from size_run import MODELS, SIZES, Division, Load, Rates, best, phases, table, train_gib, usual  # pyright: ignore[reportMissingImports]
from support import ROOT

SEVEN, THIRTY_TWO = MODELS
GPUS = Division(train=16, sample=40, verify=8)


def test_the_page_shows_what_the_model_gives():
    assert table(usual(*SIZES), Rates()) in (ROOT / "docs" / "explanation" / "scaling.md").read_text()


def test_the_page_shows_what_was_measured():
    records = json.loads((ROOT / "docs" / "benchmarks" / "scaling.json").read_text())
    assert scaling_table.table(records) in (ROOT / "docs" / "notes" / "2026-11-21-two-gpus.md").read_text()


def test_what_is_said_to_be_measured_was():
    records = json.loads((ROOT / "docs" / "benchmarks" / "scaling.json").read_text())
    full, judged = records["fsdp2"]["full"], records["one_rl"]["verdicts"]
    mean_s = judged["mean_seconds"]
    found = {
        "train_tflops": 6 * full["parameters"] * full["tokens_per_s"] / 2 / 1e12,
        "gpu_s_per_verdict": mean_s["gpu_busy"],
        "core_s_per_verdict": judged["core_s_per_verdict"],
        "asker_s_per_verdict": sum(mean_s[stage] for stage in ("parse", "screen", "plan")),
        "last_verdict_s": sum(mean_s[stage] for stage in ("trace", "compile", "interpreter", "correctness")),
    }
    assert {name: getattr(Rates(), name) for name in found} == pytest.approx(found, rel=0.01)


def test_state_is_sixteen_bytes_a_parameter():
    spread = [train_gib(SEVEN, Load(), gpus) for gpus in (2, 4)]
    assert spread[0] - spread[1] == pytest.approx(16 * SEVEN.parameters / 4 / 2**30)


def test_each_phase_follows_its_own_input():
    before = phases(SEVEN, Load(), Rates(), GPUS)
    changes = {
        "gpu_s_per_verdict": "verify on GPUs",
        "core_s_per_verdict": "verify on cores",
        "asker_s_per_verdict": "verify in the asking process",
        "last_verdict_s": "last verdict",
    }
    for name, phase in changes.items():
        after = phases(SEVEN, Load(), replace(Rates(), **{name: 2 * getattr(Rates(), name)}), GPUS)
        assert after[phase] == pytest.approx(2 * before[phase])
        assert {n: v for n, v in after.items() if n not in (phase, "step")} == {
            n: v for n, v in before.items() if n not in (phase, "step")
        }
    faster = phases(SEVEN, Load(), replace(Rates(), train_tflops=2 * Rates().train_tflops, network_gb_s=400.0), GPUS)
    assert faster["update"] == pytest.approx(before["update"] / 2)


def test_what_runs_beside_sampling_costs_only_what_is_longer():
    seconds = phases(SEVEN, Load(), Rates(), GPUS)
    beside = [v for n, v in seconds.items() if n == "generate" or n.startswith("verify")]
    after = [v for n, v in seconds.items() if n in ("last verdict", "hand out rollouts", "update", "sync", "save")]
    assert seconds["step"] == pytest.approx(max(beside) + sum(after))
    assert len(beside) + len(after) + 1 == len(seconds)


def test_the_best_division_fits_and_uses_every_gpu():
    division, seconds = best(THIRTY_TWO, Load(), Rates(), 64)
    assert division.train + division.sample + division.verify == 64
    assert train_gib(THIRTY_TWO, Load(), division.train) <= Rates().gpu_gib
    other = replace(division, train=division.train + 8, sample=division.sample - 8)
    assert seconds["step"] <= phases(THIRTY_TWO, Load(), Rates(), other)["step"]
    with pytest.raises(SystemExit, match="do not hold"):
        best(THIRTY_TWO, Load(), Rates(), 3)
