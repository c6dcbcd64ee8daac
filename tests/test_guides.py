"""The guides whose code runs on any machine, run as they are printed."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import ROOT
from support.page_commands import commands
from support.synthetic_run import make_eval_run
from support.tiny import verdict_of
from support.toy_runs import reinforce_arguments, sft_arguments
from transformers import Qwen2Config

from kernrl import cli
from kernrl.config import EvalConfig, ReinforceConfig, SftConfig
from kernrl.errors import UsageError
from kernrl.policy.memory_plan import GIB, count_parameters, estimate_training
from kernrl.policy.pairs import task_messages
from kernrl.rollouts.fall_of_correctness import Correctness
from kernrl.rollouts.own_reward import own_reward
from kernrl.rollouts.step_metrics import alarms
from kernrl.service.client import TOKEN
from kernrl.tasks.loaders import load_tasks
from kernrl.tasks.prompt import read_template
from kernrl.training.run_history import why_nothing
from kernrl.verifier.base.verdict import Speedup, Stage, Status, Timing, Verdict

Capture = pytest.CaptureFixture[str]
GUIDES = ROOT / "docs" / "guides"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL)


def test_the_guides_reward_rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_rewards.py").write_text(blocks("own_reward.md")[0])
    worth = own_reward("my_rewards:speed_against_compile")

    def verdict(status: Status, speedup: Speedup | None = None) -> Verdict:
        timing = Timing("measured", "H200", 1.0, {}, {"compile": speedup}) if speedup else None
        return Verdict(status, Stage.TIMING, "", "t", "sha", "fp32", timing=timing)

    cases = [
        (verdict(Status.WRONG), 0.0),
        (verdict(Status.CORRECT), 1.0),
        (verdict(Status.CORRECT, Speedup(2.7, 2.6, 2.8, False)), 1.0),
        (verdict(Status.CORRECT, Speedup(2.718281828459045, 2.6, 2.8, True)), 2.0),
    ]
    for judged, value in cases:
        found = worth(judged)
        assert found is not None
        assert found.value == pytest.approx(value)


def test_the_guides_template_asks(tmp_path: Path) -> None:
    [template] = re.findall(r"```jinja\n(.*?)```\n\n\|", (GUIDES / "own_prompt.md").read_text(), re.DOTALL)
    (tmp_path / "ask.j2").write_text(template)
    [task] = load_tasks("heldout#2").tasks
    *_, request = task_messages(task, "chat", gpu="H200", template=read_template(tmp_path / "ask.j2"))
    assert request["content"].startswith("You write Triton for an NVIDIA H200.")
    assert task.pytorch_code.strip() in request["content"]
    (tmp_path / "more.j2").write_text('{% include "task.j2" %}\nUse one kernel.')
    assert "Use one kernel." in task_messages(task, "chat", template=read_template(tmp_path / "more.j2"))[-1]["content"]


def test_the_guides_source_makes_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "reference" / "tasks.md").read_text()
    [source] = re.findall(r"`my_tasks:make`:\n\n```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_tasks.py").write_text(source)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "mine.py").write_text(blocks("verify_a_kernel.md")[0])
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    [task] = load_tasks("my_tasks:make").tasks
    assert (task.id, task.pytorch_code) == ("mine", blocks("verify_a_kernel.md")[0])


def test_the_guides_prompt_is_the_one_that_is_sent_in_training() -> None:
    sent = ReinforceConfig(model="m", output=Path("run"))
    assert sent.name_gpu
    assert f'task_messages(task, "chat", gpu="H200", facts={sent.facts})' in blocks("use_the_model.md")[0]


@pytest.mark.slow
def test_the_guides_model_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path, capsys: Capture) -> None:
    """As printed, but for a model of a few weights and a reply of a few tokens."""
    (tmp_path / "checkpoints" / "rl").mkdir(parents=True)
    (tmp_path / "checkpoints" / "rl" / "model").symlink_to(model)
    (tmp_path / "my_task.py").write_text(blocks("verify_a_kernel.md")[0])
    monkeypatch.chdir(tmp_path)
    [source] = blocks("use_the_model.md")
    names: dict[str, Any] = {}
    exec(source.replace("max_new_tokens=4096", "max_new_tokens=3"), names)
    assert names["reply"].shape[1] == names["prompt"]["input_ids"].shape[1] + 3
    assert capsys.readouterr().out.endswith("\n")


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_the_guide_to_testing_kernels_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    task, candidate, _ = blocks("verify_a_kernel.md")
    (tmp_path / "my_task.py").write_text(task)
    (tmp_path / "candidate.py").write_text(candidate)
    (tmp_path / "test_kernels.py").write_text("\n".join(blocks("test_kernels.md")))
    monkeypatch.chdir(tmp_path)
    for name, value in (("PATH", ""), ("HOME", str(tmp_path)), ("CUDA_VISIBLE_DEVICES", "")):
        monkeypatch.setenv(name, value)
    plugins = [word for name in ("cacheprovider", "timeout", "xdist") for word in ("-p", f"no:{name}")]
    code = pytest.main(["-q", "-rs", "--capture=no", "--rootdir", str(tmp_path), *plugins, "test_kernels.py"])
    said = capsys.readouterr().out
    assert code == 0, said
    assert "1 passed, 2 skipped" in said
    assert "no GPU to measure a speedup on" in said


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the verifier's cache
    torch.set_num_threads(1)
    cells = json.loads((ROOT / "docs" / "notebooks" / "kernrl.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        assert not cell.get("outputs"), "what it prints is seen where it is run"
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    said = capsys.readouterr().out
    assert "correct m" in said
    assert "Wrong on the" in said
    assert "class ModelNew" in said
    names["attempts"] = []
    exec(next("".join(cell["source"]) for cell in cells if "best = max(" in "".join(cell["source"])), names)
    assert capsys.readouterr().out.startswith("None of them is correct")


# --- commands, with fewer tasks, samples and tokens than on the page -------------------------------------------------------


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Path) -> Path:
    """A folder with what the pages' examples name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the verifier's cache
    torch.set_num_threads(1)
    task, candidate, _ = blocks("verify_a_kernel.md")
    for file, text in {
        "my_task.py": task,
        "candidate.py": candidate,
        "KernelBench/level2/1_Mine.py": task,
        "my_kernels/level2_1_Mine.py": candidate,
        "tasks.jsonl": json.dumps({"id": "mine", "source": task}) + "\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    for run in ("sft", "rl"):
        (tmp_path / "checkpoints" / run).mkdir(parents=True)
        (tmp_path / "checkpoints" / run / "model").symlink_to(model)
    return tmp_path


def printed(capsys: Capture, words: list[str], *fewer: str, code: int = 0) -> str:
    """What a command line of a page says, with further settings that make it small."""
    assert cli.run([*words, *fewer]) == code, (words, capsys.readouterr().err)
    said = capsys.readouterr()
    return said.err if code == 2 else said.out


@pytest.mark.slow
def test_the_guide_to_tasks_runs(workshop: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """All but its last source, which is on the hub."""
    monkeypatch.setattr("kernrl.hub.constants.HF_HUB_OFFLINE", True)
    lines = commands((GUIDES / "make_tasks.md").read_text())
    generate, stats, listed, show, prompt, bench, table, remote, check = lines
    assert "24 tasks" in printed(capsys, generate, "--count", "24", "--workers", "1")
    assert sorted(p.name for p in (workshop / "data/generated/a").iterdir()) == ["config.json", "tasks.jsonl"]
    rows = [json.loads(line) for line in (workshop / "data/generated/a/tasks.jsonl").read_text().splitlines()]
    assert len(rows) == 24
    assert "24 tasks" in printed(capsys, stats)
    heldout = [row["id"] for row in rows if row["split"] == "heldout"]
    said = printed(capsys, listed)
    assert [row["id"] for row in rows if row["id"] in said] == heldout
    assert rows[0]["id"] in printed(capsys, show)  # `#1` is the first
    assert "class Model" in printed(capsys, prompt)
    assert "level2/1_Mine" in printed(capsys, bench)
    assert "mine" in printed(capsys, table)
    assert "owner/name" in printed(capsys, remote, code=2)
    assert "derived" in printed(capsys, check)


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_the_guide_to_reports_runs(workshop: Path, capsys: Capture) -> None:
    evaluate, from_run, ci, report, *samples = commands((GUIDES / "read_a_report.md").read_text())
    few = ["--limit", "1", "--samples", "1", "--max-tokens", "4", "--quiet"]
    assert "fast_1" in printed(capsys, evaluate, *few)
    assert "fast_1 is 0, less than 0.5." in printed(capsys, ci, *few, "--output", "ci", code=1)
    assert "100%" in printed(capsys, from_run, "--quiet")
    shutil.rmtree(workshop / "checkpoints/eval-sft")  # of a model that writes no kernels
    make_eval_run(workshop / "checkpoints/eval-sft")
    make_eval_run(workshop / "checkpoints/eval-rl", skill=0.9, seed=1)
    printed(capsys, report)
    assert "eval-rl" in (workshop / "report.html").read_text()
    wrong, best, export = (printed(capsys, words) for words in samples)
    assert "wrong" in wrong
    assert "class ModelNew" in best
    assert "kernels" in export
    assert list((workshop / "kernels").glob("*.py"))


@pytest.mark.usefixtures("warm")
@pytest.mark.slow
def test_the_guide_to_serving_runs(workshop: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Server and clients, from the shell, from Python and by plain HTTP."""
    uvicorn = pytest.importorskip("uvicorn")
    page = (GUIDES / "serve.md").read_text()
    serve, verify, reinforce = commands(page)
    monkeypatch.setenv(TOKEN, "secret")
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    servers: list[Any] = []

    class Server(uvicorn.Server):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            servers.append(self)

    monkeypatch.setattr(uvicorn, "Server", Server)
    more = ["--port", str(port), "--workers", "1", "--device", "cpu"]
    thread = threading.Thread(target=cli.run, args=([*serve, *more],))
    thread.start()
    try:
        while not (servers and servers[0].started):
            assert thread.is_alive(), capsys.readouterr().err
            time.sleep(0.01)
        assert f"Serving verdicts on {address}\n" in capsys.readouterr().err
        here = [word.replace("http://127.0.0.1:8100", address) for word in verify]
        first = json.loads(printed(capsys, here, "--json"))
        assert first["status"] == "correct"
        names: dict[str, Any] = {"task": load_tasks("my_task.py").tasks[0], "reply": Path("candidate.py").read_text()}
        with pytest.raises(UsageError, match="eager,compile"):  # the server has two baselines, and this asks for one
            exec(blocks("serve.md")[0].replace("http://127.0.0.1:8100", address), names)
    finally:
        servers[0].should_exit = True
        thread.join()
    assert capsys.readouterr().out == "1 verdict given\n"
    assert ReinforceConfig(**resolved(["kernrl", *reinforce], capsys)).verifier.executor == "http://127.0.0.1:8100"


def test_the_guide_to_trackers_runs_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, model: Path, tasks: Path, pairs: Path, verifier: object
) -> None:
    """Without a network; a tracker that is not installed is named with what the page installs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    sizes = {
        "reinforce": reinforce_arguments(model, tasks, tmp_path / "reinforce", steps=1),
        "sft": sft_arguments(model, pairs, tmp_path / "sft"),
    }
    files = {"wandb": "wandb/offline-run-*/*.wandb", "tensorboard": "kernrl/events.out.tfevents.*"}
    page = (GUIDES / "trackers.md").read_text()
    for words in commands(page):
        tracker = flag(words, "--report-to")
        remedy = f"pip install 'kernrl[{tracker}]'"
        if find_spec(tracker) is None:
            assert printed(capsys, words, code=2) == f"kernrl: --report-to {tracker} needs {tracker}: {remedy}.\n"
            assert not (tmp_path / "checkpoints").exists()
        else:
            printed(capsys, words, *sizes[words[0]][1:])
            assert list((tmp_path / words[0]).glob(files[tracker]))
    assert "pip install 'kernrl[wandb]'      # or trackio, or tensorboard" in page


# --- a hub model ---------------------------------------------------------------------------------------------------------


def cells(page: str, heading: str) -> list[list[str]]:
    """The rows of the table whose first title this is."""
    text = (GUIDES / page).read_text()
    [rows] = re.findall(rf"^\| {heading} \|.*\n\|[-|:]+\n((?:\|.*\n)+)", text, re.MULTILINE)
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows.splitlines()]


def qwen(hidden: int, layers: int, heads: int, kv_heads: int, feed_forward: int, vocabulary: int, *, tied: bool) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=feed_forward,
        tie_word_embeddings=tied,
    )


PUBLISHED = {
    "0.5B": qwen(896, 24, 14, 2, 4864, 151_936, tied=True),
    "1.5B": qwen(1536, 28, 12, 2, 8960, 151_936, tied=True),
    "3B": qwen(2048, 36, 16, 2, 11_008, 151_936, tied=True),
    "7B": qwen(3584, 28, 28, 4, 18_944, 152_064, tied=False),
}
"""The architectures of Qwen2.5-Coder."""


def gib(size: str, **settings: Any) -> str:
    config = PUBLISHED[size]
    found = estimate_training(config, parameters=count_parameters(config), row_tokens=16_384, **settings)
    return f"{found.total_bytes / GIB:.0f}"


@pytest.mark.slow
def test_the_memory_in_the_guides_is_what_a_run_calculates() -> None:
    lora: dict[str, Any] = {"weight_bytes": 2, "lora_rank": 16}
    ways: list[dict[str, Any]] = [{"weight_bytes": 4}, {"weight_bytes": 4, "gradient_checkpointing": True}]
    ways += [lora, lora | {"gradient_checkpointing": True}, lora | {"gradient_checkpointing": True, "four_bit": True}]
    assert cells("train_hub_model.md", "model") == [[size, *(gib(size, **way) for way in ways)] for size in PUBLISHED]
    eight = [gib("7B", weight_bytes=4, gradient_checkpointing=True, shards=shards) for shards in (8, 4)]
    assert re.findall(r"(\d+) GiB each", (GUIDES / "eight_gpus.md").read_text()) == eight


def test_the_guide_to_a_hub_model_knows_every_alarm() -> None:
    def attempt(status: Status, finish: str, speedup_x: float | None = None) -> Any:
        rollout = SimpleNamespace(finish=finish)
        return SimpleNamespace(verdict=verdict_of("x", status, speedup_x=speedup_x), rollout=rollout)

    judged = [attempt(Status.POLICY, "stop"), attempt(Status.CORRECT, "stop", 12.0)]
    raised = [why_nothing([attempt(Status.WRONG, "length")], 64, lambda _: True)]
    raised += [why_nothing([attempt(Status.WRONG, "stop")] * 2, 64, lambda _: True), why_nothing(judged, 64, lambda _: True)]
    raised += [*alarms(judged, 0.9, 20.0, 10.0), *Correctness(best=(0.6, 99)).alarms(0.3, 99)]
    named = [row[0].strip("`") for row in cells("train_hub_model.md", "alarm")]
    assert len(named) == len(raised)
    shown = [re.sub(r"\d+(\.\d+)?", "N", text) for text in raised]
    assert [name for name in named if not any(text.startswith(name.replace("M%", "N%")) for text in shown)] == []


def test_the_guide_shows_the_defaults_of_a_hub_model(capsys: Capture) -> None:
    rows = {row[0]: row[1:] for row in cells("train_hub_model.md", "setting")}

    def both(command: str, *more: str) -> list[dict[str, Any]]:
        models = ("nano", "Qwen/Qwen2.5-Coder-1.5B-Instruct")
        return [resolved(["kernrl", command, "--model", model, "--output", "run", *more], capsys) for model in models]

    nano, hub = both("reinforce")
    whole = both("reinforce", "--no-lora")[1]
    assert rows["reward (`--reward`)"][0] == f"`{nano['reward']}`"
    assert rows["reward (`--reward`)"][1].startswith(f"`{hub['reward']}`")
    assert f"`--max-tokens {hub['max_tokens']}`" in rows["reply"][1]
    assert rows["a step of `reinforce`"] == [f"{c['tasks_per_step']} tasks × {c['samples']} candidates" for c in (nano, hub)]
    assert (nano["learning_rate"], nano["adam_epsilon"]) == (2e-3, 1e-2)
    assert rows["rate of `reinforce`"] == ["2e-3 with `--adam-epsilon 1e-2`", "1e-5 with LoRA, else 1e-6"]
    assert (hub["lora"], hub["learning_rate"], whole["learning_rate"]) == (True, 1e-5, 1e-6)
    nano, hub = both("best-of-n")
    whole = both("best-of-n", "--no-lora")[1]
    assert rows["rate of `best-of-n`"] == ["5e-5", "1e-4 with LoRA, else 1e-5"]
    assert [c["learning_rate"] for c in (nano, hub, whole)] == [5e-5, 1e-4, 1e-5]


# --- eight GPUs ----------------------------------------------------------------------------------------------------------


def shell_lines(page: str) -> list[tuple[dict[str, str], list[str]]]:
    """(environment, words) of every command of a page's blocks of bash."""
    found = []
    for block in re.findall(r"```bash\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            count = next(n for n, word in enumerate(words) if not re.match(r"[A-Z_]+=", word))
            found.append((dict(word.split("=", 1) for word in words[:count]), words[count:]))
    return found


def flag(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def resolved(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.run([*words[1:], "--dry-run", "--json"]) == 0, (words, capsys.readouterr().err)
    return json.loads(capsys.readouterr().out)


def gpus(environment: dict[str, str]) -> set[str]:
    return set(environment["CUDA_VISIBLE_DEVICES"].split(","))


def test_the_commands_for_eight_gpus_fit_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shell_lines("eight_gpus.md")
    kernrl = [(env, words) for env, words in lines if words[0] == "kernrl" and "--resume" not in words]
    ours = [(env, words, resolved(words, capsys)) for env, words in kernrl]
    by_name = {words[1]: (env, config) for env, words, config in ours}
    evaluations = [config for _, words, config in ours if words[1] == "eval"]
    sft, rl = SftConfig(**by_name["sft"][1]), ReinforceConfig(**by_name["reinforce"][1])
    before, after = (EvalConfig(**config) for config in evaluations)
    servers = [(env, words) for env, words in lines if words[0].endswith("vllm")]
    [(ray_env, ray)] = [(env, words) for env, words in lines if words[:2] == ["ray", "start"]]

    # each GPU has one use, and each engine is told how many it has
    uses = [gpus(by_name["reinforce"][0]), gpus(servers[0][0]), gpus(ray_env)]
    assert sorted(gpu for use in uses for gpu in use) == list("01234567")
    assert rl.num_processes == len(uses[0])
    assert int(flag(servers[0][1], "--tensor-parallel-size")) == len(uses[1])
    assert int(flag(ray, "--num-gpus")) == len(uses[2])

    # what one step makes the next one takes
    assert (str(before.model), str(rl.model)) == (f"{sft.output}/model",) * 2
    assert str(after.model) == f"{rl.output}/model"
    assert [words[2] for _, words in servers] == [before.model, after.model]
    [report] = [words for _, words in lines if words[:2] == ["kernrl", "report"]]
    assert report[2:5] == [str(before.output), str(after.output), str(rl.output)]
    [again] = [words for _, words in lines if "--resume" in words]
    assert again[1:] == ["reinforce", "--output", str(rl.output), "--resume"]

    # the server is asked where it listens, by its name, and started as the way of sending weights needs it
    for config in (rl, before, after):
        assert (config.server_url, config.server_model) == ("http://localhost:8000", "kernels")
        assert config.verifier.executor == "ray"
    for environment, words in servers:
        assert (flag(words, "--port"), flag(words, "--served-model-name")) == ("8000", "kernels")
        assert (environment["VLLM_SERVER_DEV_MODE"], flag(words, "--logprobs-mode")) == ("1", "processed_logprobs")
    assert rl.weight_sync == "checkpoint"
    assert not rl.lora
    assert sft.launch == rl.launch == "fsdp2"
    assert before.max_tokens == after.max_tokens == rl.max_tokens


@pytest.mark.slow
def test_ray_takes_the_flags_for_eight_gpus() -> None:
    scripts = pytest.importorskip("ray.scripts.scripts")
    for _, words in shell_lines("eight_gpus.md"):
        if words[0] == "ray":
            command = scripts.cli.commands[words[1]]
            command.make_context(words[1], words[2:])  # parses, and runs nothing
