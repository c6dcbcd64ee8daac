"""Packed training on a GPU: the varlen kernels are what runs, documents stay apart, nothing compiles twice, runs go on.

python -m pytest tests/gpu/test_policy_gpu.py
"""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from support.tiny import save_tiny_policy, tiny_policy

from kernrl.cli import run
from kernrl.policy import attention
from kernrl.policy.attention import packed_kwargs
from kernrl.policy.examples import Example
from kernrl.policy.finetune import Finetuner, FinetuneSettings
from kernrl.policy.load import Policy
from kernrl.policy.packing import PackedDataset
from kernrl.policy.ranks import Ranks
from kernrl.runs.run_directory import read_lines

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

ROW_TOKENS = 512


def dataset(count: int = 64, seed: int = 0) -> PackedDataset:
    random = torch.Generator().manual_seed(seed)

    def ids(low: int, high: int) -> list[int]:
        length = int(torch.randint(low, high, (), generator=random))
        return torch.randint(4, 260, (length,), generator=random).tolist()

    return PackedDataset([Example(ids(1, 60), ids(1, 90)) for _ in range(count)], ROW_TOKENS, 0, seed)


def hidden(policy: Policy, row, max_seqlen: int, input_ids: torch.Tensor | None = None) -> torch.Tensor:
    extra = packed_kwargs(row.position_ids, row.cu_seqlens, max_seqlen)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        ids = row.input_ids if input_ids is None else input_ids
        return policy.base(input_ids=ids, **extra).last_hidden_state[0].float()


@pytest.fixture
def policy() -> Policy:
    made = tiny_policy()
    made.model.to("cuda").eval()  # pyright: ignore[reportArgumentType]
    return made


def test_every_layer_runs_the_varlen_kernel_and_it_agrees_with_the_definition(policy, monkeypatch):
    data = dataset()
    row = next(data.rows()).to("cuda")
    calls = []
    real = attention.flash_attention
    monkeypatch.setattr(attention, "flash_attention", lambda *args: calls.append(args[0].dtype) or real(*args))
    found = hidden(policy, row, data.max_seqlen)
    assert calls == [torch.bfloat16] * policy.model.config.num_hidden_layers
    monkeypatch.setattr(
        attention, "flash_attention", lambda q, k, v, cu, most, scale: attention.attention_by_document(q, k, v, cu, scale)
    )
    wanted = hidden(policy, row, data.max_seqlen)
    assert (found - wanted).norm() / wanted.norm() < 0.01


def test_a_document_does_not_move_by_one_bit_when_its_neighbours_change(policy):
    data = dataset()
    row = next(data.rows()).to("cuda")
    before = hidden(policy, row, data.max_seqlen)
    a, b = list(itertools.pairwise(row.cu_seqlens.unique().tolist()))[1]
    others = (row.input_ids + 1) % 260
    others[:, a:b] = row.input_ids[:, a:b]
    after = hidden(policy, row, data.max_seqlen, others)
    assert torch.equal(before[a:b], after[a:b])
    assert not torch.equal(before[:a], after[:a])


def test_rows_of_any_documents_share_one_compilation(policy):
    policy.model.train()
    settings = FinetuneSettings(steps=2, rows_per_step=1, learning_rate=1e-3)
    finetuner = Finetuner(Ranks(Accelerator(mixed_precision="bf16")), policy, dataset(), settings, compile_model=True)
    losses: list[float] = []
    finetuner.run(lambda metrics: losses.append(metrics["loss"]))
    finetuner.settings, finetuner.last = FinetuneSettings(steps=12, rows_per_step=1, learning_rate=1e-3), False
    with torch._dynamo.config.patch(error_on_recompile=True):  # pyright: ignore[reportAttributeAccessIssue]
        finetuner.run(lambda metrics: losses.append(metrics["loss"]))
    assert len(losses) == 12
    assert losses[-1] < losses[0]


def test_compiled_and_eager_steps_agree():
    losses = {}
    for compiled in (False, True):
        policy = tiny_policy()
        policy.model.to("cuda")  # pyright: ignore[reportArgumentType]
        settings = FinetuneSettings(steps=6, rows_per_step=1, learning_rate=1e-3)
        finetuner = Finetuner(Ranks(Accelerator(mixed_precision="bf16")), policy, dataset(), settings, compile_model=compiled)
        seen: list[float] = []
        finetuner.run(lambda metrics, seen=seen: seen.append(metrics["loss"]))
        losses[compiled] = seen
    assert losses[True] == pytest.approx(losses[False], rel=2e-2)


def test_a_resumed_run_goes_on_as_the_uninterrupted_one(tmp_path: Path):
    """Attention's gradient of the queries is summed by atomics, so the losses agree closely, not to the bit as on a CPU."""
    model = save_tiny_policy(tmp_path / "model")
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"add {a} and {b}", "completion": f"the answer is {a + b}"} for a in range(20) for b in range(10)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    sizes = ["--row-tokens", "512", "--rows-per-step", "2", "--max-length", "256", "--learning-rate", "0.01"]
    cadence = ["--validate-every", "4", "--save-every", "4", "--steps", "8", "--quiet"]
    common = ["sft", "--model", str(model), "--data", str(pairs), *sizes, *cadence]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    assert run([*common, "--output", str(whole)]) == 0
    assert run([*common, "--output", str(resumed)]) == 0
    shutil.rmtree(resumed / "model")
    (resumed / "results.json").unlink()
    assert (resumed / "step_4").exists()
    assert run([*common, "--output", str(resumed), "--resume"]) == 0

    def losses(folder: Path) -> list[float]:
        return [line["loss"] for line in read_lines(folder / "metrics.jsonl")]

    difference = max(abs(a - b) / a for a, b in zip(losses(whole), losses(resumed), strict=True))
    print(f"largest relative difference of a loss: {difference:.2e}")
    assert len(losses(whole)) == 8
    assert difference < 2e-3
