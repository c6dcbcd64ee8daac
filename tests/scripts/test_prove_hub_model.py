"""The proof of larger models: all its stages with a model of a few weights, what a kill leaves, and the table."""

import json
import math
import os
import signal
import subprocess
import sys
import time

import hub_model_table  # pyright: ignore[reportMissingImports]
import prove_hub_model  # pyright: ignore[reportMissingImports]
import pytest
import torch
from support import ROOT, TESTS
from support.pool_of_threads import pool_of_threads
from support.tiny import FakeVerifier, verdict_of
from transformers import AutoModelForCausalLM

from kernrl import cli
from kernrl.rollouts.collect import Collector
from kernrl.training import evaluation, pair_stream
from kernrl.verifier.base.verdict import Status


def judge(text):
    """Every other candidate, by its text, is right, and as fast as it is long."""
    right = sum(text.encode()) % 2 == 0
    return verdict_of(text, Status.CORRECT if right else Status.WRONG, speedup_x=1 + len(text) / 100, compile_x=0.5)


@pytest.fixture
def here(monkeypatch, verifier):
    """Commands run in this process, as they are printed; what the model writes counts as candidates, and is judged at once."""
    verifier.judge = judge
    return in_this_process(monkeypatch)


def in_this_process(monkeypatch):
    commands = []

    def run(command, meanwhile, limit_s=None):
        assert command[:3] == [sys.executable, "-m", "kernrl"]
        commands.append(command[3:])
        return cli.run(command[3:])

    monkeypatch.setattr(prove_hub_model, "run", run)
    monkeypatch.setattr(pair_stream, "ProcessPoolExecutor", pool_of_threads)
    monkeypatch.setattr(evaluation, "open_verifier", lambda config: FakeVerifier(judge))

    def read(self, task, rollout):
        text = self.tokenizer.decode(rollout.token_ids)
        return text, text, ""

    monkeypatch.setattr(Collector, "read", read)
    return commands


def prove(monkeypatch, folder, *more):
    words = ["prove_hub_model.py", "--tiny", "--work", str(folder / "work"), "--out", str(folder / "hub.json"), *more]
    monkeypatch.setattr(sys, "argv", words)
    prove_hub_model.main()
    return json.loads((folder / "hub.json").read_text())


@pytest.mark.slow
def test_all_stages_make_rows_and_a_table(tmp_path, monkeypatch, capsys, here):
    first = prove(monkeypatch, tmp_path, "--stages", "sft", "before")
    assert [row["stage"] for row in first["rows"]] == ["sft", "before"]
    record = prove(monkeypatch, tmp_path)
    assert [words[0] for words in here] == ["sft", "eval", "reinforce", "eval"]  # none is done twice
    sft, before, reinforce, after = record["rows"]
    assert [sft, before] == first["rows"]

    assert all(row["ended"] and row["size"] == "tiny" and row["seconds"] > 0 for row in record["rows"])
    assert sft["steps"] == 3
    predicted = math.log(2880) + 64 * 0.02**2 / 2  # as the docstring does
    assert [sft["first_loss"], sft["validation_loss"]] == pytest.approx([predicted] * 2, abs=0.03)
    assert [point["step"] for point in sft["curve"]] == [3]
    assert 20 <= sft["pairs"] <= 64
    assert sft["tokens"] > 3 * 1024
    assert reinforce["exported"]
    assert (reinforce["steps"], reinforce["samples"]) == (2, 8)
    assert 0 < reinforce["learnt"] <= 8
    for row in (before, after):
        assert (row["tasks"], row["samples"]) == (2, 4)
        rows = [json.loads(line) for line in (tmp_path / "work/tiny" / row["stage"] / "samples.jsonl").open()]
        assert row["correct"]["value"] == sum(r["verdict"]["status"] == "correct" for r in rows) / 4
        assert row["tokens"] == sum(r["tokens"] for r in rows)
        assert row["against"]["compile"]["fast_1_plain"]["value"] == 0
    value = after["correct"]["value"] - before["correct"]["value"]
    assert after["change"]["correct"]["value"] == pytest.approx(value)

    page = (tmp_path / "hub.md").read_text()
    assert page in capsys.readouterr().out
    [sft_line, *others] = [line for line in page.splitlines() if line.startswith("| tiny")]
    assert len(others) == 3
    assert f"| SFT | {sft['seconds']:.0f} | 3 | {sft['tokens']:,} | {sft['pairs']} | {sft['validation_loss']:.3f} |" in sft_line
    assert f"- tiny: {100 * value:+.1f} points" in page
    (tmp_path / "hub.md").unlink()
    assert prove(monkeypatch, tmp_path, "--render") == record
    assert (tmp_path / "hub.md").read_text() == page


def taught(folder):
    """As after SFT, with random weights; and a record with a row of another machine."""
    prove_hub_model.make(prove_hub_model.SIZES["tiny"], folder / "work" / "tiny" / "sft" / "model", seed=0)
    other = {"size": "1.5B", "stage": "sft", "ended": True, "seconds": 1.0, "parameters": 1_310_000_000, "gpu": "NVIDIA H200"}
    other |= {"steps": 7, "tokens": 2_500_000, "pairs": None, "validation_loss": 0.1234}
    (folder / "hub.json").write_text(json.dumps({"rows": [other]}))
    return other


def be_killed(folder):
    """Prove the first evaluation, and be killed between two of its samples."""
    monkeypatch = pytest.MonkeyPatch()
    in_this_process(monkeypatch)

    def killed(command, meanwhile, limit_s=None):
        before = folder / "work" / "tiny" / "before"
        assert cli.run(command[3:]) == 0
        lines = (before / "samples.jsonl").read_text().splitlines(keepends=True)
        (before / "samples.jsonl").write_text("".join(lines[:-1]) + lines[-1][:50])
        for name in ("metrics.jsonl", "results.json"):
            (before / name).unlink()
        meanwhile()
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(prove_hub_model, "run", killed)
    prove(monkeypatch, folder, "--stages", "before")


@pytest.mark.slow
def test_a_killed_run_leaves_its_rows_and_the_same_command_goes_on(tmp_path, monkeypatch, here):
    """It is killed between two samples of the first evaluation; what watches it has just written the record."""
    other = taught(tmp_path)

    # a process of its own, not a fork: torch's threads do not outlive one
    code = "import sys, pathlib, test_prove_hub_model as it; it.be_killed(pathlib.Path(sys.argv[1]))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "scripts", TESTS, TESTS / "scripts")))}
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    record = json.loads((tmp_path / "hub.json").read_text())
    kept, before = record["rows"]
    assert kept == other
    assert not before["ended"]
    assert (before["tasks"], before["samples"]) == (1, 2)  # the other task has one of its two
    page = hub_model_table.markdown(record)
    assert "| tiny | eval (cut off) | – |" in page
    assert "| 1.5B (1.31 G) | SFT | 1 | 7 | 2.5 M | – | 0.123 |" in page
    assert page.startswith("On NVIDIA H200 and a CPU with modelled times: torch ")

    record = prove(monkeypatch, tmp_path, "--stages", "before")
    assert [(words[0], words[-1]) for words in here] == [("eval", "--resume")]
    kept, before = record["rows"]
    assert kept == other
    assert (before["ended"], before["samples"]) == (True, 4)


@pytest.mark.slow
def test_rl_that_learns_nothing_is_said(tmp_path, monkeypatch, capsys, here, verifier):
    taught(tmp_path)
    verifier.judge = judge_all_wrong
    record = prove(monkeypatch, tmp_path, "--stages", "reinforce", "after")
    [_, reinforce] = record["rows"]
    assert not reinforce["exported"]
    [alarm] = reinforce["alarms"]
    assert alarm.startswith("nothing could be learnt")
    assert reinforce["alarms"][alarm] == 2
    assert f"{alarm} (2)" in (tmp_path / "hub.md").read_text()
    assert "after was left out" in capsys.readouterr().out


def judge_all_wrong(text):
    return verdict_of(text, Status.WRONG)


def test_weights_that_are_added_to_the_residual_stream_are_smaller(tmp_path):
    size = prove_hub_model.SIZES["tiny"]
    prove_hub_model.make(size, tmp_path / "start", seed=3)
    weights = AutoModelForCausalLM.from_pretrained(tmp_path / "start", dtype="auto").state_dict()
    assert {w.dtype for w in weights.values()} == {torch.bfloat16}
    spread = {name: float(weights[f"model.layers.1.{name}.weight"].float().std()) for name in ("mlp.up_proj", "mlp.down_proj")}
    assert spread["mlp.up_proj"] == pytest.approx(0.02, rel=0.05)
    assert spread["mlp.down_proj"] == pytest.approx(0.02 / 2, rel=0.05)  # √(2 × 2 layers)


@pytest.mark.parametrize(("name", "billions"), [("0.5B", 0.36), ("1.5B", 1.31), ("nano", 0.0172)])
def test_sizes_are_what_is_said(name, billions):
    from kernrl.policy.load import load_tokenizer
    from kernrl.policy.memory_plan import count_parameters

    config = prove_hub_model.SIZES[name].config(load_tokenizer("nano"))
    assert count_parameters(config) / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_command_that_takes_too_long_is_interrupted_and_recorded_meanwhile(monkeypatch):
    monkeypatch.setattr(prove_hub_model, "POLL_S", 0.01)
    looks = []
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in what a shell starts in the background
    try:
        code = prove_hub_model.run(["sleep", "60"], lambda: looks.append(time.monotonic()), 0.05)
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == -signal.SIGTERM
    assert looks
    assert prove_hub_model.run(["false"], list) == 1
