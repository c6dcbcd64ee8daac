"""A nano of the form `graph` among the commands: how it is asked, what is judged, and what is kept of its replies."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from support import ROOT
from support.tiny import FakeVerifier, ScriptedEngine, tiny_policy, verdict_of

from kernrl.config import EvalConfig, SftConfig
from kernrl.errors import UsageError
from kernrl.policy.load import load_tokenizer
from kernrl.policy.nano import FORM, form_of, train_tokenizer
from kernrl.policy.pairs import task_pairs
from kernrl.rollouts.collect import Collector
from kernrl.rollouts.engines.engine import Sampling
from kernrl.rollouts.reward import reward
from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.tasks.nano.form import ask, replies
from kernrl.tasks.nano.suites import suite
from kernrl.tasks.prompt import render_prompt
from kernrl.tasks.task import Task
from kernrl.training import session
from kernrl.training.evaluation import Progress, ask_or_refuse
from kernrl.training.session import askable, lifter_for, prompt_style
from kernrl.training.sft_data import read_pairs
from kernrl.verifier.base.verdict import Status

LSTM = Task(
    "lstm",
    "import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.l = nn.LSTM(4, 4)\n\n    def forward(self, x):\n        return self.l(x)[0]\n\n\n"
    "def get_inputs():\n    return [torch.randn(3, 2, 4)]\n\n\ndef get_init_inputs():\n    return []\n",
)


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return list(suite("graph-heldout", tasks=2))


@pytest.mark.slow
@pytest.mark.parametrize("style", ["graph", "graph-fast"])
def test_a_reply_is_judged_as_a_whole_file_and_a_malformed_one_is_not_judged(
    tasks: list[Task], style: Literal["graph", "graph-fast"]
) -> None:
    tokenizer = tiny_policy().tokenizer
    good = [replies(task, "fp32")[0] for task in tasks]
    verifier = FakeVerifier(lambda text: verdict_of(text))
    engine = ScriptedEngine(tokenizer, lambda prompt, sample, call: (good[prompt], "def forward(")[sample])
    collector = Collector(engine, tokenizer, verifier, reward, Sampling(2, 4096, 1.0), style=style, precision="tf32")
    attempts = collector.collect(tasks, (0, 1)).attempts
    asked = [ask(task, "tf32", fast=style == "graph-fast") for task in tasks]
    assert [text in prompt for text, prompt in zip(asked, engine.calls[0][0], strict=True)] == [True, True]
    assert [" fast " in text for text in asked] == [style == "graph-fast"] * 2
    assert [a.verdict.status for a in attempts] == [Status.CORRECT, Status.NO_CODE] * 2
    assert len(verifier.asked) == 2
    for task, attempt in zip(tasks, attempts[::2], strict=True):
        assert "class ModelNew" in attempt.text
        assert (task.id, attempt.text) in verifier.asked
        assert attempt.reply == good[attempt.group]
    assert "no Python" in attempts[1].verdict.reason
    assert attempts[1].reward is not None
    assert attempts[1].reward.value == 0


def test_a_nano_is_asked_in_the_form_that_its_folder_records(tmp_path: Path) -> None:
    old, new = train_tokenizer(["ab"]), train_tokenizer(["v0 = relu(x0) A B"], form="graph")
    for name, tokenizer in (("old", old), ("new", new)):
        tokenizer.save_pretrained(tmp_path / name)
        (tmp_path / name / "config.json").write_text('{"model_type": "qwen2"}')
    loaded = {name: load_tokenizer(str(tmp_path / name)) for name in ("old", "new")}
    assert [prompt_style(loaded[name]) for name in ("old", "new")] == ["nano", "graph"]
    assert prompt_style(loaded["new"], "nano") == "graph"
    assert prompt_style(loaded["new"], "chat") == "chat"
    assert FORM not in loaded["old"].init_kwargs
    shipped = ROOT / "checkpoints" / "nano"
    assert form_of(load_tokenizer(str(shipped))) == "graph-fast"


def test_names_are_the_same_tokens_everywhere() -> None:
    text = "x0 A B\nv12 = tl.load(v12_ptr + a * B, mask=mask).to(tl.float32)\ntl.store(v12_ptr + a * B, v12, mask=mask)\n"
    spelled = train_tokenizer([text] * 100, form="graph")
    plain = train_tokenizer([text] * 100)
    for tokenizer, apart in ((spelled, True), (plain, False)):
        pieces = [tokenizer.decode([i]) for i in tokenizer(text, add_special_tokens=False)["input_ids"]]
        assert all(len(p.strip()) <= 3 for p in pieces if "v1" in p or p.strip() == "B") is apart
    assert spelled.decode(spelled(text)["input_ids"]) == text


def test_tasks_without_a_graph_are_left_out_with_the_reason(tasks: list[Task], capsys: pytest.CaptureFixture[str]) -> None:
    assert askable([*tasks, LSTM], "graph") == tasks
    assert "lstm has no Graph to ask nano for" in capsys.readouterr().err
    assert askable([LSTM], "chat") == [LSTM]
    given: list[Any] = []
    assert askable([*tasks, LSTM], "graph", lambda some: given.append(some) or some) == tasks
    assert given == [[task for task in (*tasks, LSTM) if not task.composition]]
    with pytest.raises(UsageError, match="no task can be asked of this nano"):
        askable([LSTM], "graph")


def test_an_evaluation_counts_tasks_without_a_graph_as_judged(tasks: list[Task]) -> None:
    rows: list[Any] = []
    prepared: list[Any] = []
    directory, collector = SimpleNamespace(add_sample=rows.append), SimpleNamespace(style="graph", prepare=prepared.append)
    progress = Progress(task.id for task in (*tasks, LSTM) for _ in range(2))
    asked = ask_or_refuse([*tasks, LSTM], collector, 2, {}, directory, progress)  # pyright: ignore[reportArgumentType]
    assert asked == tasks
    assert prepared == [[*tasks, LSTM]]
    assert [row["verdict"]["status"] for row in rows] == ["no_code", "no_code"]
    assert progress.line(FakeVerifier(verdict_of)).startswith("1 of 3 tasks, 2 of 6 verdicts")


@pytest.mark.parametrize(
    ("model", "prompt", "cores", "workers"),
    [
        ("nano", None, 16, 8),
        ("nano", "nano", 4, 2),
        ("nano", None, 2, 0),
        ("nano", "chat", 16, 0),
        ("a/chat", None, 16, 0),
    ],
)
def test_processes_that_lift_are_for_a_nano_that_is_asked_by_graphs(
    model: str, prompt: Any, cores: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    monkeypatch.setattr(session, "Lifter", opened.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    lifter_for(EvalConfig(model=str(ROOT / "checkpoints" / "nano") if model == "nano" else model, prompt=prompt))
    assert opened == [workers]


def test_generated_tasks_are_not_lifted_before_they_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list(generate_tasks(level=2, count=3, seed=5, split="train", workers=1))
    monkeypatch.setattr("kernrl.tasks.nano.form.lift", lambda task: pytest.fail(f"{task.id} was lifted"))
    assert askable(made, "graph") == made
    with pytest.raises(pytest.fail.Exception, match="was lifted"):
        askable([replace(made[0], composition=())], "graph")


@pytest.mark.slow
def test_sft_makes_pairs_of_the_form() -> None:
    config = SftConfig(output=Path("unused"), form="graph", count=20, workers=1)
    pairs = list(read_pairs(config, "validation"))
    assert len(pairs) > 10
    for pair in pairs:
        assert pair.messages[-1]["content"].splitlines()[-1].startswith("return ")
        assert "\ndef forward():\n" in pair.completion


def test_pairs_of_given_tasks_are_written_from_their_graph(tasks: list[Task]) -> None:
    pairs = list(task_pairs(tasks[:1], "graph", "bf16"))
    assert {p.messages[0]["content"] for p in pairs} == {ask(tasks[0], "bf16")}
    assert [p.completion for p in pairs] == replies(tasks[0], "bf16")


def test_facts_are_a_block_of_chat_prompts_that_can_be_left_out(tasks: list[Task]) -> None:
    plain, told = (str(render_prompt(tasks[0], "chat", facts=facts)) for facts in (False, True))
    assert "Could be one kernel" not in plain
    assert "Shapes and costs, op by op" in told
    assert "Memory moved" in told
    assert render_prompt(LSTM, facts=True) == render_prompt(LSTM)
