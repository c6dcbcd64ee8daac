"""Where SFT pairs come from: every form that people keep them in, and one sentence for what is none."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kernrl.config import ReinforceConfig, SftConfig
from kernrl.console import log
from kernrl.errors import UsageError
from kernrl.policy.pairs import Pair, UnusableRow, row_pair, task_messages, task_pairs
from kernrl.runs.run_directory import RunDirectory
from kernrl.settings import load_config
from kernrl.tasks.grammar.generate import generate_tasks
from kernrl.tasks.prompt import PRECISIONS
from kernrl.training import sft_data
from kernrl.training.sft_data import read_pairs

REFERENCE = "class Model: ...\ndef get_inputs(): ...\ndef get_init_inputs(): ...\n"


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def table(folder: Path, rows: list[dict[str, Any]], name: str = "pairs.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs(data: Path, split: str = "train", **settings: Any) -> list[Pair]:
    return list(read_pairs(SftConfig(output=Path("run"), model="some/model", data=str(data), **settings), split))


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"prompt": "ask", "completion": "answer"}, [user("ask")]),
        (
            {"messages": [user("one"), assistant("two"), user("ask"), assistant("answer")]},
            [user("one"), assistant("two"), user("ask")],
        ),
        ({"prompt": [user("ask")], "completion": [assistant("answer")]}, [user("ask")]),
        ({"prompt": [user("ask")], "completion": "answer"}, [user("ask")]),
        ({"prompt": "ask", "completion": [assistant("first"), assistant("answer")]}, [user("ask"), assistant("first")]),
    ],
)
def test_forms_of_a_row(row: dict[str, Any], messages: list[dict[str, str]]) -> None:
    assert row_pair(row) == Pair(messages, "answer")


@pytest.mark.parametrize(
    "row",
    [
        {"messages": "talk"},
        {"messages": [1, 2]},
        {"messages": []},
        {"messages": [user("ask")]},
        {"messages": [assistant("answer to nothing")]},
        {"messages": [{"from": "human", "value": "ask"}, {"from": "gpt", "value": "answer"}]},
        {"messages": [user("ask"), {"role": "assistant", "content": [{"type": "text", "text": "in parts"}]}]},
        {"messages": [user("ask"), {"role": "assistant", "content": None}]},
        {"prompt": 1, "completion": 2},
        {"prompt": "", "completion": ""},
        {"prompt": "ask", "completion": [assistant("")]},
        {"question": "why"},
    ],
)
def test_what_is_no_pair(row: dict[str, Any]) -> None:
    with pytest.raises(UnusableRow, match=r"^has "):
        row_pair(row)


ROWS = [{"prompt": f"ask {n}", "completion": f"answer {n}"} for n in range(100)]


@pytest.mark.slow
def test_tables_and_datasets(tmp_path: Path) -> None:
    import datasets
    import pyarrow.parquet

    expected = [Pair([user(row["prompt"])], row["completion"]) for n, row in enumerate(ROWS) if n % 50]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "pairs.parquet")
    (tmp_path / "pairs.json").write_text(json.dumps(ROWS))
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    table(tmp_path, ROWS)
    for name in ("pairs.jsonl", "pairs.json", "pairs.parquet", "saved"):
        assert pairs(tmp_path / name) == expected
        assert [p.completion for p in pairs(tmp_path / name, "validation")] == ["answer 0", "answer 50"]


def test_splits_that_have_a_name(tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    parts = datasets.DatasetDict()
    parts["train"], parts["test"] = datasets.Dataset.from_list(ROWS[:3]), datasets.Dataset.from_list(ROWS[3:5])
    parts.save_to_disk(str(tmp_path / "saved"))
    assert [p.completion for p in pairs(tmp_path / "saved")] == ["answer 0", "answer 1", "answer 2"]
    assert [p.completion for p in pairs(tmp_path / "saved", "validation")] == ["answer 3", "answer 4"]


def test_held_out_rows_are_never_learnt(tmp_path: Path) -> None:
    rows = [{**row, "split": "heldout" if n % 2 else "train"} for n, row in enumerate(ROWS)]
    learnt = [*pairs(table(tmp_path, rows)), *pairs(table(tmp_path, rows), "validation")]
    assert sorted(int(p.completion.split()[1]) for p in learnt) == list(range(0, 100, 2))


@pytest.mark.slow
def test_columns_by_other_names(tmp_path: Path) -> None:
    asked = table(tmp_path, [{"question": f"ask {n}", "answer": f"answer {n}"} for n in range(3)])
    assert pairs(asked, map=("prompt=question", "completion=answer"))[0] == Pair([user("ask 1")], "answer 1")
    talks = table(tmp_path, [{"talk": [user("ask"), assistant(f"answer {n}")]} for n in range(3)], "talks.jsonl")
    assert pairs(talks, map=("messages=talk",))[0] == Pair([user("ask")], "answer 1")
    rows = [{"instruction": "do", "source": REFERENCE, "fast": f"class ModelNew: x = {n}"} for n in range(3)]
    labelled = table(tmp_path, rows, "labelled.jsonl")
    pair = pairs(labelled, map=("pytorch_code=source", "triton_code=fast"))[0]
    assert pair.completion == "```python\nclass ModelNew: x = 1\n```"
    assert REFERENCE.strip() in pair.messages[-1]["content"]


def test_a_misspelt_column_and_a_revision_of_a_file_are_named(tmp_path: Path) -> None:
    asked = table(tmp_path, [{"question": "ask", "answer": "answer"}] * 3)
    with pytest.raises(UsageError, match=r"^--map completion=anwser: no row of .* there are question, answer\.$"):
        pairs(asked, map=("prompt=question", "completion=anwser"))
    with pytest.raises(UsageError, match=r"^--data-revision: .*pairs\.jsonl is not a dataset of the hub"):
        pairs(asked, data_revision="abc")


def test_rows_without_a_pair_are_counted_wherever_they_stand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row that the rule of every fiftieth would take for validation is broken here."""
    monkeypatch.setattr(log, "quiet", False)
    mixed = table(tmp_path, [row if n % 2 else {"messages": "talk"} for n, row in enumerate(ROWS)])
    assert len(pairs(mixed)) + len(pairs(mixed, "validation")) == 50
    said = capsys.readouterr().err
    assert said.count("50 of 100 rows hold no pair") == 1
    assert "pairs.jsonl:1 has a column `messages`" in said


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], ["--data", "there is no task"]),
        ([{"question": "why"}], ["`messages`, or `prompt` and `completion`", "--map", "question"]),
        ([{"messages": "talk"}], ["no row holds a pair", "pairs.jsonl:1 has a column `messages`"]),
        ([{"pytorch_code": REFERENCE}], ["`triton_code`"]),
        (ROWS[:1], ["none of its 1 usable rows is left for train", "at least one row"]),
        ([{**row, "split": "test"} for row in ROWS], ["for train (splits: test)"]),
    ],
)
def test_data_that_cannot_teach(tmp_path: Path, rows: list[dict[str, Any]], words: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        pairs(table(tmp_path, rows))
    assert all(word in str(raised.value) for word in words), raised.value
    assert "\n" not in str(raised.value)


# --- facts ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("many", [False, True])
def test_a_chat_model_is_taught_with_the_prompts_that_it_is_asked_with(monkeypatch: pytest.MonkeyPatch, many: bool) -> None:
    [task] = generate_tasks(level=2, count=1, seed=0, split="train", workers=1)
    pools = []

    @contextmanager
    def pool(workers: int) -> Iterator[Any]:
        pools.append(workers)
        yield map

    monkeypatch.setattr(sft_data, "worker_pool", pool)
    monkeypatch.setattr(sft_data, "FEW_TASKS", 1 if many else 2)
    asked = {}
    for facts in (True, False):
        config = SftConfig(model="some/model", output=Path("run"), workers=3, facts=facts)
        pairs = list(sft_data.pairs_asked([task], config, "chat", ""))
        assert [p.completion for p in pairs] == [f"```python\n{s.triton_code.strip()}\n```" for s in task.solutions]
        assert all(p.messages == task_messages(task, "chat", gpu="H200", facts=facts) for p in pairs)
        asked[facts] = pairs[0].messages[-1]["content"]
        nano = list(sft_data.pairs_asked([task], config, "nano", ""))
        assert nano == list(task_pairs([task], "nano"))
    assert asked[True].startswith(asked[False])
    assert "FLOP" in asked[True].removeprefix(asked[False])
    assert pools == [3] * many
    for name in ("facts", "name_gpu"):
        assert getattr(SftConfig(output=Path("run")), name) is getattr(ReinforceConfig(model="m", output=Path("run")), name)


@pytest.mark.parametrize(("settings", "named"), [({}, "NVIDIA H200"), ({"verifier": {"target": "A100"}}, "NVIDIA A100-SXM4")])
def test_generated_pairs_name_the_gpu_and_tf32(settings: dict[str, Any], named: str) -> None:
    def asked(**more: Any) -> str:
        config = SftConfig(model="some/model", output=Path("run"), count=64, workers=1, facts=False, **{**settings, **more})
        return next(sft_data.read_pairs(config, "train")).messages[-1]["content"]

    assert f"kernels for an {named}" in asked()
    assert PRECISIONS["tf32"] in asked()
    assert "NVIDIA" not in asked(name_gpu=False)
    assert PRECISIONS["bf16"] in asked(verifier={"precision": "bf16"})


def test_a_run_from_before_sft_had_facts_goes_on_without(tmp_path: Path) -> None:
    kept = SftConfig(model="some/model", output=tmp_path).model_dump(mode="json")
    del kept["facts"]
    (tmp_path / "config.json").write_text(json.dumps({"config": kept, "argv": []}))
    resumed = load_config(SftConfig, (), {"output": tmp_path, "resume": True})
    assert resumed.facts is False
    RunDirectory.open(tmp_path, resumed, resume=True)
    assert SftConfig(output=tmp_path).facts is True
