"""The benchmark of the losses without a GPU: what it times computes alike, and its page shows every figure of a record."""

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import bench_loss  # pyright: ignore[reportMissingImports]
import bench_other_losses  # pyright: ignore[reportMissingImports]
import loss_batches  # pyright: ignore[reportMissingImports]
import loss_table  # pyright: ignore[reportMissingImports]
import pytest
import torch
from torch.overrides import TorchFunctionMode

from kernrl.kernels.over_tokens.token_loss import LOSS_TYPES, SEQUENCE_LOSSES


class OnCpu(TorchFunctionMode):
    """`device="cuda"` means the CPU."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[torch.Tensor]]]:
    """Every run that is timed, once; and the gradients of its inputs."""
    seen: dict[str, list[torch.Tensor]] = {}
    running = ""

    def medians_ms(runs: Mapping[str, Callable], restore: Callable = lambda: None, **_: Any) -> dict[str, float]:
        nonlocal running
        for name, run in runs.items():
            running = name
            restore()
            run()
        return dict.fromkeys(runs, 1.5)

    def forward_backward(loss: Callable, *inputs: torch.Tensor) -> None:
        leaves = [x.detach().clone().requires_grad_() for x in inputs]
        loss(*leaves).backward()
        seen[running] = [leaf.grad for leaf in leaves if leaf.grad is not None]

    for package in ("trl.kernels", "liger_kernel"):
        monkeypatch.setitem(sys.modules, package, None)  # their kernels need a GPU
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    for module in (bench_loss, bench_other_losses):
        monkeypatch.setattr(module, "medians_ms", medians_ms)
        monkeypatch.setattr(module, "forward_backward", forward_backward)
        monkeypatch.setattr(module, "peak_bytes", lambda _run: 2**30)
        monkeypatch.setattr(module, "warm", lambda gemms: gemms())
        monkeypatch.setattr(module, "VOCAB", 100)
    monkeypatch.setattr(loss_batches, "VOCAB", 100)
    monkeypatch.setattr(
        bench_other_losses, "host_and_wall_us", lambda runs: {name: (run(), (10.0, 20.0))[1] for name, run in runs.items()}
    )
    with OnCpu():
        yield seen


def alike(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """bfloat16 rounds logits and gradients here and there."""
    return all((x.double() - y.double()).norm() <= 0.05 * y.double().norm() for x, y in zip(one, other, strict=True))


def test_every_loss_type_has_a_row_of_its_own(gradients):
    rows = list(bench_other_losses.bench_variants(64, 50))
    named = {row["name"] for row in rows} - {"copy"}
    assert named >= set(LOSS_TYPES) - {"grpo", "bnpo", "dapo"}  # which are timed at every shape, with the same launches
    assert all(math.isfinite(row["ms"]) and row["x_floor"] == 1 and row["peak_gib"] == 1 for row in rows)
    assert gradients.keys() == named
    plain = gradients["grpo by sequence"]  # equal sequences, so that it is grpo's own
    assert not any(alike(gradients[loss_type], plain) for loss_type in (*SEQUENCE_LOSSES, "cispo", "dr_grpo", "reinforce"))
    assert all(gradient.isfinite().all() and gradient.any() for [gradient] in gradients.values())


def test_cross_entropy_and_its_peers_have_one_gradient(gradients):
    rows = list(bench_other_losses.bench_cross_entropy(64, 16, compile_too=True))
    assert rows[0]["name"] == "three GEMMs"
    assert {"kernrl", "eager", "torch.compile"} <= {row["name"] for row in rows}
    assert alike(gradients["kernrl"], gradients["eager"])
    assert alike(gradients["torch.compile"], gradients["eager"])


def test_log_probs_are_timed_alone_with_backward_and_from_hidden_states(gradients):
    rows = {row["name"]: row for row in bench_other_losses.bench_logprobs(64, 100, 16)}
    for name in (
        "kernrl, forward alone",
        "kernrl, forward + backward",
        "kernrl, forward alone, from hidden states of width 16",
    ):
        assert name in rows
    assert rows["kernrl, forward alone"]["x_floor"] == 2  # the logits are read, not written
    assert rows["kernrl, forward + backward"]["x_floor"] == 1


def test_what_a_call_costs_the_host_is_asked_of_every_loss_but_ppo_loss(gradients):
    """`bench_tokens` asks it of that one."""
    rows = list(bench_other_losses.bench_host(64, 100, 16))
    losses = {"grpo_loss", "ratio_kl", "token_logprobs", "linear_grpo_loss", "linear_cross_entropy"}
    assert {row["name"].partition(":")[0] for row in rows if "kernrl" in row["name"]} == losses
    assert {tuple(row["shape"]) for row in rows} == {(64, 100), (64, 16)}


def record(**tables: list[dict]) -> dict:
    return {
        "date": "2026-01-02", "gpu": "A GPU", "cuda": "13.0", "commit": "1234567", "versions": {"torch": "2.0", "trl": None},
        "copy_gb_per_s": 4000.4, "autograd_us": 99.6, **tables,
    }  # fmt: skip


def test_the_page_shows_date_duration_and_every_table():
    timed = {"shape": [8, 9], "ms": 1.2345, "x_floor": 1.5, "floor": "a copy"}
    tables = {
        kind: [{**timed, "name": f"row of {kind}"}, {**timed, "name": "too large", "ms": None, "x_floor": None}]
        for kind, *_ in bench_loss.PARTS
    }
    tables["host"] = [{"shape": [8, 9], "name": "row of host", "host_us": 123.4, "wall_us": 234.5}]
    page = " ".join(loss_table.markdown({**record(**tables), "seconds": 432.1}).split())
    assert "Measured on 2026-01-02 on one A GPU in 7 minutes: torch 2.0, CUDA 13.0" in page
    assert "| 8 × 9 | row of host | 123 | 234 |" in page
    for kind in tables.keys() - {"host"}:
        assert f"| 8 × 9 | row of {kind} | 1.234 | 1.50 | | 8 × 9 | too large | | |" in page, kind
    assert page.count("Floor: a copy.") == len(tables) - 1


def test_a_record_without_a_duration_has_a_page():
    page = loss_table.markdown(record(tokens=[{"shape": [1, 2], "name": "one", "ms": 1.0, "x_floor": 1.0, "floor": "none"}]))
    assert "on one A GPU: torch" in page
    assert "minutes" not in page
