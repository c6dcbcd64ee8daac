"""Improvement on a GPU: the sampler and the trainer see the same policy, and a seed decides everything.

python -m pytest tests/gpu/test_training_gpu.py
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from support.tiny import FakeVerifier, tiny_tasks, verdict_of

from kernrl.cli import run
from kernrl.policy.attention import packed_kwargs
from kernrl.policy.examples import Example
from kernrl.policy.load import Policy, load_policy
from kernrl.policy.nano import create_nano, train_tokenizer
from kernrl.rollouts.batch import pack_rollouts
from kernrl.rollouts.engines.engine import Rollout, Sampling
from kernrl.rollouts.engines.generate_engine import GenerateEngine
from kernrl.runs.run_directory import read_lines
from kernrl.tasks.rows import write_tasks
from kernrl.training import session
from kernrl.verifier.base.verdict import Verdict

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]

PROMPTS = [[*range(5, 5 + 11 * n)] for n in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A nano with fresh weights, spread wide enough that log-probs differ."""
    path = tmp_path_factory.mktemp("nano")
    tokenizer = train_tokenizer(["def f(x): return x + 1\n"] * 10)
    model: Any = create_nano(tokenizer, seed=0)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(3.0)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def policy(folder: Path) -> Policy:
    loaded = load_policy(str(folder))
    model: Any = loaded.model
    model.to("cuda")
    return loaded


def sampled(policy: Policy, **settings: Any) -> list[Rollout]:
    engine = GenerateEngine(policy, dtype=torch.bfloat16, **settings)
    sampling = Sampling(n=16, max_tokens=40, temperature=0.8, stop_ids=tuple(range(40, 60)), seed=3)
    return sorted(engine.generate(PROMPTS, sampling), key=lambda r: (r.prompt, r.sample))


def plain_logprobs(policy: Policy, rollouts: list[Rollout], dtype: torch.dtype) -> torch.Tensor:
    """Of every sampled token, by one ordinary forward a rollout; float64."""
    found = []
    model: Any = policy.model
    for r in rollouts:
        ids = torch.tensor([[*PROMPTS[r.prompt], *r.token_ids]], device="cuda")
        with torch.no_grad(), torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            logits = model(input_ids=ids).logits[0, len(PROMPTS[r.prompt]) - 1 : -1]
        logprobs = torch.log_softmax(logits.double() / 0.8, -1)
        found.append(logprobs.gather(1, torch.tensor(r.token_ids, device="cuda")[:, None])[:, 0])
    return torch.cat(found)


@pytest.mark.parametrize("graphs", [False, True])
def test_the_sampler_notes_the_policys_log_probs(policy: Policy, graphs: bool) -> None:
    rollouts = sampled(policy, graphs=graphs)
    noted = torch.tensor([x for r in rollouts for x in r.logprobs or ()], dtype=torch.float64, device="cuda")
    exact = plain_logprobs(policy, rollouts, torch.float32)
    assert noted.std() > 1.0
    # the copy that samples has weights rounded to bfloat16: 8 bits, through six layers
    assert (noted - exact).abs().mean() < 0.05
    assert abs((noted - exact).mean()) < 0.01


def test_packed_rows_give_the_log_probs_of_single_rollouts(policy: Policy) -> None:
    rollouts = sampled(policy)
    examples = [Example(PROMPTS[r.prompt], r.token_ids) for r in rollouts]
    exact = plain_logprobs(policy, rollouts, torch.float32)
    (row,) = pack_rollouts(examples, [r.logprobs for r in rollouts], row_tokens=8192, pad_id=0)
    inputs = row.row.to("cuda")
    extra = packed_kwargs(inputs.position_ids, inputs.cu_seqlens, row.max_seqlen)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        hidden = policy.base(input_ids=inputs.input_ids, **extra).last_hidden_state[0]
    assert hidden.dtype == torch.float32  # the last norm's; attention inside was in bfloat16, the only kind for packed rows
    logits = hidden.double() @ policy.head_weight.double().T / 0.8
    mask = inputs.targets >= 0
    packed = torch.log_softmax(logits[mask], -1).gather(1, inputs.targets[mask][:, None])[:, 0]
    assert (packed - exact).abs().mean() < 0.03
    assert abs((packed - exact).mean()) < 0.005


def test_the_same_seed_gives_the_same_rollouts(policy: Policy) -> None:
    assert sampled(policy) == sampled(policy)


def judge(text: str) -> Verdict:
    """A toy task: write even bytes."""
    data = text.encode(errors="replace")
    return verdict_of(text, speedup_x=0.1 + 2.9 * sum(b % 2 == 0 for b in data) / max(1, len(data)))


PLAIN = (
    "--no-lora", "--updates-per-epoch", "1", "--advantage", "loo", "--warmup-steps", "5",
    "--learning-rate", "1e-4", "--adam-epsilon", "1e-8", "--max-grad-norm", "1", "--row-tokens", "16384",
)  # fmt: skip
"""One on-policy update a step, in place of nano's defaults: its rollouts are the policy's own."""


@pytest.mark.parametrize("options", [(), ("--loss", "grpo", "--epochs", "2", "--beta", "0.01")], ids=["reinforce", "grpo"])
def test_the_same_seed_gives_the_same_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    monkeypatch.setattr(session, "open_verifier", lambda config: FakeVerifier(judge))
    tasks = tmp_path / "tasks.jsonl"
    write_tasks(tasks, tiny_tasks())
    lines, texts = [], []
    for name in ("first", "second"):
        output = tmp_path / name
        where = ["--model", str(folder), "--tasks", str(tasks), "--output", str(output), "--steps", "3"]
        sizes = ["--tasks-per-step", "4", "--samples", "16", "--max-tokens", "24"]
        assert run(["reinforce", *where, *sizes, *PLAIN, "--reward", "best-of-n", "--quiet", *options]) == 0
        lines.append(read_lines(output / "metrics.jsonl"))
        texts.append({row["id"]: row["text"] for row in read_lines(output / "samples.jsonl")})
    for first, second in zip(*lines, strict=True):
        if not first["learnt"]:  # the toy may be solved before the run is over: equal rewards teach nothing
            assert second["learnt"] == 0
            continue
        assert first["loss"] == second["loss"]
        assert first["grad_norm"] == second["grad_norm"] > 0
        assert 0 <= first["mismatch_kl"] < 1e-2
        assert first["correction_mean"] == pytest.approx(1.0, abs=0.05)
    assert lines[0][1]["learnt"] > 0  # the second step samples what the first one's update has made of the policy
    assert texts[0] == texts[1]


NANO = os.environ.get("KERNRL_NANO", str(Path(__file__).parents[2] / "checkpoints" / "nano"))
"""A trained nano; KERNRL_NANO names another folder than the shipped one's."""


@pytest.mark.skipif(not Path(NANO, "config.json").exists(), reason="needs a trained nano")
def test_a_step_with_the_real_verifier(tmp_path: Path) -> None:
    output = tmp_path / "run"
    sizes = ["--steps", "1", "--tasks-per-step", "4", "--samples", "4", "--limit", "8", "--max-tokens", "400"]
    assert run(["reinforce", "--model", NANO, "--output", str(output), *sizes, "--learning-rate", "1e-4", "--quiet"]) == 0
    (line,) = read_lines(output / "metrics.jsonl")
    rows = read_lines(output / "samples.jsonl")
    assert line["correct"] > 0.3
    assert line["speed_geomean_x"] > 0.5
    assert all(row["verdict"]["timing"]["kind"] == "measured" for row in rows if row["verdict"]["status"] == "correct")
    assert 0 <= line["mismatch_kl"] < 1e-2
    assert {"generate", "verify", "update", "trace", "correctness", "timing"} <= set(line["seconds"])
