"""`kernrl sft` on a CPU: a small model learns, a killed run goes on as if nothing had been, bad input is one sentence."""

import json
import re
import shutil
import signal

import pytest
import torch
from accelerate import Accelerator
from support.forked import run_forked
from support.pool_of_threads import pool_of_threads
from support.tiny import FakeVerifier, tiny_tasks, verdict_of
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from kernrl.cli import run
from kernrl.config import SftConfig
from kernrl.config.by_model import NANO_SHAPE
from kernrl.errors import UsageError
from kernrl.policy import nano, parallel, shipped_nano
from kernrl.policy.checkpoint import latest_checkpoint
from kernrl.policy.examples import tokenize_pairs
from kernrl.policy.load import Policy, load_policy, load_tokenizer
from kernrl.policy.nano import train_tokenizer
from kernrl.policy.pairs import row_pair
from kernrl.policy.ranks import Ranks
from kernrl.runs.model_card import model_card
from kernrl.runs.run_directory import read_lines
from kernrl.stages import sft
from kernrl.training import evaluation, pair_stream, sft_evaluation
from kernrl.training.session import prompt_style
from kernrl.verifier.base.verdict import Status


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
    cadence = ["--validate-every", "4", "--save-every", "2"]
    return ["sft", "--model", str(model), "--data", str(pairs), "--output", str(output), *sizes, *cadence, "--quiet", *more]


def tokenized(model, pairs):
    rows = [row_pair(json.loads(line)) for line in pairs.read_text().splitlines()]
    return tokenize_pairs(rows, load_tokenizer(str(model)), 4096).examples


def losses(output):
    return {line["step"]: (line["loss"], line["grad_norm"]) for line in read_lines(output / "metrics.jsonl")}


def test_the_last_row_of_an_epoch_says_nothing_of_the_speed():
    steps = [{"step": n, "loss": 1.0, "tokens_per_s": 2e6, "mfu": 0.25} for n in range(1, 9)]
    steps[3]["validation_loss"] = steps[7]["validation_loss"] = 1.0
    steps[7] |= {"tokens_per_s": 3e5, "mfu": 0.04}  # a row that is nearly empty
    _, table = sft.summary({"model": "m"}, steps).renderables
    assert [list(column.cells) for column in table.columns[3:]] == [["2,000,000"] * 2, ["25%"] * 2]


def test_the_last_table_has_no_empty_column():
    step = {"step": 2, "loss": 1.0, "tokens_per_s": 96.0, "validation_loss": 1.5}
    title, table = sft.summary({"model": "a/long/path"}, [step]).renderables
    assert str(title) == "model: a/long/path"
    assert [column.header for column in table.columns] == ["step", "loss", "validation loss", "tokens/s"]


@pytest.mark.slow
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


KILLED = """
import os, sys
from kernrl.cli import run
from kernrl.policy import checkpoint, finetune

publish, clip, clipped = checkpoint.publish, finetune.clip_gradients, []

def in_a_write(staging, final):
    os.kill(os.getpid(), 9) if final.name == "step_4" else publish(staging, final)

def in_a_step(*args):
    clipped.append(1)
    return os.kill(os.getpid(), 9) if len(clipped) == 6 else clip(*args)

checkpoint.publish, finetune.clip_gradients = (in_a_write, clip) if sys.argv[1] == "write" else (publish, in_a_step)
run(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "kept", "more"),
    [("step", "step_4", ()), ("write", "step_2", ()), ("write", "step_2", ("--lora", "--lora-rank", "4"))],
)
def test_a_killed_run_goes_on_bit_for_bit(model, pairs, tmp_path, moment, kept, more):
    """Killed when gradients of step 6 were there and had not been applied, or when the files of step 4 were not published."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(arguments(model, pairs, whole, *more)) == 0
    assert run_forked(KILLED, moment, *arguments(model, pairs, killed, *more)) == -signal.SIGKILL
    assert latest_checkpoint(killed) == killed / kept
    assert (killed / ".staging-step_4").exists() == (moment == "write")
    (killed / "metrics.jsonl").open("a").write('{"step": 5, "los')  # what a kill in the middle of a line leaves
    assert run(arguments(model, pairs, killed, *more, "--resume")) == 0
    assert losses(killed) == losses(whole)
    assert not list(killed.glob(".staging*"))


def test_a_run_is_not_written_over_nor_resumed_with_other_settings(model, pairs, tmp_path, capsys):
    output = tmp_path / "run"
    assert run(arguments(model, pairs, output, "--steps", "1")) == 0
    assert run(arguments(model, pairs, output)) == 2
    assert "not empty" in capsys.readouterr().err
    assert run(arguments(model, pairs, output, "--resume", "--seed", "7")) == 2
    assert "has --seed 0, not 7: leave it out to go on with the run's, or give another --output." in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_that_has_ended_is_left_alone_and_can_be_made_longer(model, pairs, tmp_path, capsys, monkeypatch):
    output = tmp_path / "run"
    assert run(arguments(model, pairs, output)) == 0
    before = (output / "results.json").read_text(), (output / "model" / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(sft, "train_and_save", lambda *args: pytest.fail("trained again"))
    assert run([word for word in arguments(model, pairs, output, "--resume") if word != "--quiet"]) == 0
    assert "The run has ended." in capsys.readouterr().err
    assert before == ((output / "results.json").read_text(), (output / "model" / "model.safetensors").stat().st_mtime_ns)
    uploaded = []
    monkeypatch.setattr(sft, "check_upload", lambda name: None)
    monkeypatch.setattr(sft, "upload", lambda folder, name: uploaded.append((folder, name)) or "address")
    for _ in range(2):
        assert run(arguments(model, pairs, output, "--resume", "--push-to-hub", "me/model")) == 0
    assert uploaded == [(output / "model", "me/model")]
    assert json.loads((output / "results.json").read_text())["uploaded"] == "address"
    monkeypatch.undo()
    assert run(arguments(model, pairs, output, "--steps", "3", "--resume")) == 2
    assert "--steps 3: the run is at step 6 already" in capsys.readouterr().err
    assert run(arguments(model, pairs, output, "--steps", "10", "--resume")) == 0
    assert sorted(losses(output)) == list(range(1, 11))
    assert json.loads((output / "results.json").read_text())["steps"] == 10


@pytest.mark.slow
def test_what_the_model_writes_is_looked_at_and_its_card_says_how_good_it_is(model, pairs, tmp_path, monkeypatch):
    verifier = FakeVerifier(lambda text: verdict_of(text, Status.CORRECT if "answer" in text else Status.NO_CODE))
    monkeypatch.setattr(sft_evaluation, "open_verifier", lambda config: verifier)
    monkeypatch.setitem(sft_evaluation.REPLIES, "nano", {"max_tokens": 16, "sampling_batch": 4})
    monkeypatch.setattr(evaluation, "open_verifier", lambda config: verifier)
    monkeypatch.setattr(evaluation, "read_tasks", lambda config: tiny_tasks(2))
    output = tmp_path / "run"
    more = ["--verify-every", "4", "--verify-tasks", "3", "--heldout-samples", "2", "--workers", "1"]
    assert run(arguments(model, pairs, output, *more)) == 0
    lines = {line["step"]: line for line in read_lines(output / "metrics.jsonl")}
    assert [step for step, line in lines.items() if "verify_s" in line] == [4, 8]
    looks = read_lines(output / "samples.jsonl")
    assert [row["step"] for row in looks] == [4] * 3 + [8] * 3
    share = sum("answer" in row["text"] for row in looks[3:]) / 3
    assert lines[8]["correct"] == pytest.approx(share)
    history = json.loads((output / "model" / "trainer_state.json").read_text())
    assert [line["loss"] for line in history["log_history"]] == [line["loss"] for line in lines.values()]
    card = (output / "model" / "README.md").read_text()
    heldout = json.loads((output / "results.json").read_text())["heldout"]
    assert f"| pass@1 | {heldout['pass@1']['value']:.3f}" in card
    assert "2 held-out tasks" in card
    assert f"kernrl sft --model {model}" in card
    assert "--steps 8" in card


def test_a_nano_from_a_folder_is_taught_as_it_will_be_asked(model, tmp_path, monkeypatch):
    """`kernrl eval` asks by what the tokenizer knows, so that is how tasks must have been put in training."""
    asked = []
    monkeypatch.setattr(sft, "read_pairs", lambda config, split: asked.append(config.prompt) or iter(()))
    assert run(["sft", "--model", str(model), "--output", str(tmp_path / "a"), "--quiet"]) == 2
    assert run(["sft", "--model", str(model), "--prompt", "chat", "--output", str(tmp_path / "b"), "--quiet"]) == 2
    assert asked == ["nano", "chat"]


def test_the_card_claims_no_licence_for_a_model_of_others_and_its_command_runs_as_it_stands(tmp_path):
    config = SftConfig(output=tmp_path, model="some/model", data="pairs.jsonl", map=("prompt=q", "completion=a"))
    results = {"architecture": "llama", "parameters": 1, "pairs": 1, "steps": 1, "tokens": 1, "train_s": 1.0, "data_s": 1.0}
    made = {"versions": dict.fromkeys(("kernrl", "torch", "triton", "transformers"), "1"), "gpu": None, "commit": None}
    card = model_card(config, {**results, "validation_loss": 1.0}, made)
    assert "license" not in card
    assert "base_model: some/model" in card
    assert "of the llama architecture" in card
    assert "--map prompt=q --map completion=a" in card
    assert "license: apache-2.0" in model_card(SftConfig(output=tmp_path), {**results, "validation_loss": 1.0}, made)


def test_the_card_counts_wins_beyond_the_noise_and_gives_the_plain_count_beside_it(tmp_path):
    results = {"architecture": "llama", "parameters": 1, "pairs": 1, "steps": 1, "tokens": 1, "train_s": 1.0, "data_s": 1.0}
    heldout = {"fast_1": {"value": 0.25}, "fast_1_plain": {"value": 0.5}, "timing": None, "tasks": 2, "samples": 4}
    results |= {"validation_loss": 1.0, "heldout": heldout | {"by_family": {}, "by_depth": {}}, "heldout_temperature": 0.8}
    made = {"versions": dict.fromkeys(("kernrl", "torch", "triton", "transformers"), "1"), "gpu": None, "commit": None}
    assert [line for line in model_card(SftConfig(output=tmp_path), results, made).splitlines() if "fast_1" in line] == [
        "| fast_1, wins beyond the noise | 0.250 |",
        "| fast_1, every win counted | 0.500 |",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("small", "files"), [(0, 1), (10**8, 3)])
def test_only_a_small_model_is_cut_in_small_shards(tmp_path, monkeypatch, small, files):
    monkeypatch.setattr(parallel, "SMALL_PARAMETERS", small)
    tokenizer = train_tokenizer(["add 12 and 34"] * 2)
    policy = Policy(nano.create_nano(tokenizer, 0), tokenizer)
    parallel.save_final(Ranks(Accelerator(cpu=True)), policy, tmp_path, [{"step": 1}])
    shards = list(tmp_path.glob("*.safetensors"))
    assert len(shards) == files
    assert (max(file.stat().st_size for file in shards) <= 15 << 20) == (files > 1)


def test_what_is_left_open_depends_on_the_model(tmp_path):
    folder = tmp_path / "a_nano"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(NANO_SHAPE))
    for model in ("nano", str(folder)):
        nano_run = sft.with_defaults(SftConfig(output=tmp_path, model=model), on_gpu=True, processes=1)
        assert (nano_run.row_tokens, nano_run.rows_per_step) == (65_536, 1)
        assert (nano_run.learning_rate, nano_run.epochs, nano_run.optimizer) == (3e-3, 6, "muon")
    adapters = sft.with_defaults(SftConfig(output=tmp_path, model="m", lora=True, rows_per_step=2), on_gpu=False, processes=1)
    assert (adapters.row_tokens, adapters.rows_per_step, adapters.learning_rate, adapters.epochs) == (4_096, 2, 2e-4, 1)
    assert sft.with_defaults(SftConfig(output=tmp_path, model="m"), on_gpu=True, processes=3).rows_per_step == 12


def test_nano_by_name_is_the_trained_one(model, tmp_path, monkeypatch):
    (tmp_path / "checkpoints").mkdir()
    shutil.copytree(model, tmp_path / "checkpoints" / "nano")
    monkeypatch.chdir(tmp_path)
    assert load_policy("nano").head_weight.shape[1] == 64
    monkeypatch.setattr(shipped_nano, "__file__", str(tmp_path / "elsewhere" / "kernrl" / "policy" / "shipped_nano.py"))
    shutil.rmtree("checkpoints")
    with pytest.raises(UsageError, match="kernrl sft --output"):
        load_policy("nano")


@pytest.mark.parametrize(("chosen", "said"), [("nano", True), ("folder", False)])
def test_a_new_nano_is_told_apart_from_the_shipped_one(model, tmp_path, capsys, chosen, said):
    config = SftConfig(model=chosen if said else str(model), output=tmp_path, row_tokens=4096)
    sft.check_model(config, None, Ranks(Accelerator(cpu=True)))
    assert ("A new nano is made from random weights" in capsys.readouterr().err) == said


def test_adapters_on_nothing_are_refused(tmp_path, capsys):
    assert run(["sft", "--output", str(tmp_path / "run"), "--lora"]) == 2
    assert "--lora cannot teach nano" in capsys.readouterr().err


def test_bad_data_is_refused_before_anything_is_trained(model, pairs, tmp_path, capsys):
    useless = tmp_path / "useless.jsonl"
    useless.write_text('{"question": "why"}\n')
    assert run(arguments(model, useless, tmp_path / "a")) == 2
    assert "question" in capsys.readouterr().err
    long = tmp_path / "long.jsonl"
    long.write_text("".join(json.dumps({"prompt": "say it", "completion": "0123456789" * 9}) + "\n" for _ in range(60)))
    assert run(arguments(model, long, tmp_path / "b")) == 2
    assert (
        "no train pair is left to learn from: 58 train pairs are longer than 64 tokens, --max-length,"
        in capsys.readouterr().err
    )


def test_a_bad_model_is_refused_before_data_is_made_for_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sft, "read_pairs", lambda config, split: pytest.fail("minutes of data for a misspelt folder"))
    assert run(["sft", "--model", "./nowhere", "--output", str(tmp_path / "run"), "--quiet"]) == 2
    assert "--model ./nowhere: there is no such folder." in capsys.readouterr().err


def test_what_a_model_cannot_see_at_once_is_left_out_and_counted(model, pairs, tmp_path, capsys):
    """A position beyond a model's context is one it was never taught, and with learnt positions no position at all."""
    short = tmp_path / "short"
    shutil.copytree(model, short)
    settings = json.loads((short / "config.json").read_text())
    lengths = sorted(map(len, tokenized(model, pairs)))
    context = lengths[-1] - 1
    (short / "config.json").write_text(json.dumps({**settings, "max_position_embeddings": context}))
    arguments_ = [a for a in arguments(short, pairs, tmp_path / "run", "--steps", "1") if a != "--quiet"]
    assert run(arguments_) == 0
    said = capsys.readouterr().err
    counted = re.findall(rf"(\d+) \w+ pairs are longer than {context} tokens, the model's context,", said)
    assert sum(map(int, counted)) == sum(n > context for n in lengths) > 0


def test_a_run_that_is_refused_starts_no_tracker(model, tmp_path, monkeypatch):
    """What a tracker writes would keep the next try from the folder."""
    monkeypatch.setattr(sft, "start_tracker", lambda *_: pytest.fail("a tracker was started"))
    useless = tmp_path / "useless.jsonl"
    useless.write_text('{"question": "why"}\n')
    assert run(arguments(model, useless, tmp_path / "run")) == 2


@pytest.mark.slow
def test_pairs_are_made_while_training_until_the_time_is_over(tmp_path, monkeypatch):
    whole = nano.nano_config

    def small(*arguments, **options):
        config = whole(*arguments, **options)
        config.hidden_size, config.num_hidden_layers, config.layer_types = 64, 1, config.layer_types[:1]
        config.num_attention_heads, config.num_key_value_heads, config.intermediate_size = 2, 1, 64
        return config

    monkeypatch.setattr(nano, "nano_config", small)
    command = ["sft", "--form", "graph", "--output", str(tmp_path / "run"), "--count", "128", "--styles", "1"]
    rows = ["--row-tokens", "1024", "--max-length", "1024", "--workers", "1", "--optimizer", "muon", "--schedule", "linear"]
    assert run([*command, *rows, "--time-limit-s", "2", "--learning-rate", "1e-3"]) == 0
    history = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert "validation_loss" in history[-1]
    assert history[-1]["learning_rate"] < 1e-5  # the last step begins when the time is over
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 50 < results["pairs"] <= 128
    assert nano.form_of(load_tokenizer(str(tmp_path / "run" / "model"))) == "graph"
    # it goes on from a checkpoint's weights as any other model does, and learns to be asked for what is fast
    monkeypatch.setattr(pair_stream, "ProcessPoolExecutor", pool_of_threads)
    assert run([*command[:-6], "--output", str(tmp_path / "more"), *rows[:4], "--model", str(tmp_path / "run" / "model"),
                "--steps", "1", "--count", "20", "--workers", "1", "--style-choice", "tagged"]) == 0  # fmt: skip
    taught = load_tokenizer(str(tmp_path / "more" / "model"))
    assert prompt_style(taught) == nano.form_of(taught) == "graph-fast"
    told = SftConfig(output=tmp_path, model=str(tmp_path / "more" / "model"))
    assert sft.check_model(told, None, Ranks(Accelerator(cpu=True))).style_choice == "tagged"
