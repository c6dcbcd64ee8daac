"""`kernrl sft` on a CPU: a small model learns, a killed run goes on as if nothing had been, bad input is one sentence."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from kernrl.cli import run
from kernrl.policy.nano import train_tokenizer
from kernrl.stages.run import read_lines


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A two-layer model of the hub's kind, made on the spot."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer(["add 12 and 34: the answer is 46"] * 2)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    rows = [{"prompt": f"add {a} and {b}", "completion": f"the answer is {a + b}"} for a in range(20) for b in range(10)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def arguments(model, pairs, output, *more):
    sizes = ["--row-tokens", "256", "--rows-per-step", "2", "--max-length", "64", "--steps", "8", "--learning-rate", "0.01"]
    cadence = ["--evaluate-every", "4", "--save-every", "2"]
    return ["sft", "--model", str(model), "--data", str(pairs), "--output", str(output), *sizes, *cadence, "--quiet", *more]


def losses(output):
    return {line["step"]: (line["loss"], line["grad_norm"]) for line in read_lines(output / "metrics.jsonl")}


def test_the_loss_falls_and_plain_transformers_loads_the_result(model, pairs, tmp_path):
    output = tmp_path / "run"
    assert run(arguments(model, pairs, output)) == 0
    lines = read_lines(output / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 9))
    assert lines[-1]["loss"] < 0.6 * lines[0]["loss"]
    assert lines[-1]["validation_loss"] < lines[3]["validation_loss"] < lines[0]["loss"]
    trained = AutoModelForCausalLM.from_pretrained(output / "model")
    assert trained.dtype == torch.bfloat16
    assert not torch.equal(trained.model.norm.weight, torch.ones(64, dtype=torch.bfloat16))
    assert json.loads((output / "results.json").read_text())["steps"] == 8


@pytest.mark.parametrize("lora", [(), ("--lora", "--lora-rank", "4")])
def test_a_killed_run_goes_on_bit_for_bit(model, pairs, tmp_path, lora):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(arguments(model, pairs, whole, *lora)) == 0
    command = [sys.executable, "-m", "kernrl", *arguments(model, pairs, killed, *lora)]
    child = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    while not (killed / "step_4").exists() and child.poll() is None:
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    (killed / "metrics.jsonl").open("a").write('{"step": 5, "los')  # what a kill in the middle of a write leaves
    assert run(arguments(model, pairs, killed, *lora, "--resume")) == 0
    assert losses(killed) == losses(whole)


def test_a_run_is_not_written_over_nor_resumed_with_other_settings(model, pairs, tmp_path, capsys):
    output = tmp_path / "run"
    assert run(arguments(model, pairs, output, "--steps", "1")) == 0
    assert run(arguments(model, pairs, output)) == 2
    assert "not empty" in capsys.readouterr().err
    assert run(arguments(model, pairs, output, "--resume", "--seed", "7")) == 2
    assert "seed was 0 and is now 7" in capsys.readouterr().err


def test_bad_data_is_refused_before_anything_is_trained(model, pairs, tmp_path, capsys):
    useless = tmp_path / "useless.jsonl"
    useless.write_text('{"question": "why"}\n')
    assert run(arguments(model, useless, tmp_path / "a")) == 2
    assert "question" in capsys.readouterr().err
    long = tmp_path / "long.jsonl"
    long.write_text("".join(json.dumps({"prompt": "say it", "completion": "0123456789" * 9}) + "\n" for _ in range(60)))
    assert run(arguments(model, long, tmp_path / "b")) == 2
    assert "no train pair is left" in capsys.readouterr().err
