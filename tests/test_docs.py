"""What the pages say is true now: paths exist, commands are commands, Python runs, and what is generated is current."""

import importlib.util
import json
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support import ROOT
from support.synthetic_run import make_reinforce_run

from kernrl import cli
from kernrl.tasks.loaders import load_tasks

PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cli_page_is_current() -> None:
    assert (ROOT / "docs" / "cli.md").read_text() == script("make_cli_docs").render(), "run `make docs`"


def test_results_page_is_current() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    assert script("make_results_page").render(page) == page, "run `make docs`"


def test_a_table_appears_when_its_measurement_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = script("make_results_page")
    page = "<!-- table: ablation -->\n<!-- end -->\n"
    monkeypatch.setattr(made, "DOCS", tmp_path)
    assert "Not measured yet: there is no ablation.json" in made.render(page)
    (tmp_path / "benchmarks").mkdir()
    recorded = json.loads((ROOT / "docs" / "benchmarks" / "ablation_cpu.json").read_text())
    (tmp_path / "benchmarks" / "ablation.json").write_text(json.dumps(recorded | {"gpu": "NVIDIA H200"}))
    table = made.render(made.render(page))
    assert "| poison |" in table
    assert "NVIDIA H200, torch" in table


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    links = [target for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in target]
    missing = [target for target in links if not (page.parent / target).exists()]
    # `folder/file` in backticks is a path of the repository, where its first part is one of ours
    ours = ("kernrl", "docs", "scripts", "tests", "data", ".ci", ".github")
    paths = [p for p in re.findall(r"`([\w./-]+/[\w./-]*)`", text) if p.split("/")[0] in ours]
    missing += [path for path in paths if not (ROOT / path).exists() and not path.startswith("data/generated")]
    assert not missing, f"{page.name} names what is not there: {missing}"


def test_readme_targets_are_in_the_makefile() -> None:
    targets = re.findall(r"(?:^    |`)make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {"quickstart", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in targets)


def test_ci_runs_what_the_readme_says() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert ".ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()


CODE = re.compile(r"```(?:bash|console|text)?\n(.*?)```|((?:^    .*\n|^\n(?=    ))+)", re.DOTALL | re.MULTILINE)
"""Fenced blocks that are no Python, and indented ones."""


def commands(text: str) -> list[list[str]]:
    """The words after `kernrl` of every command line in a page's blocks of code."""
    found = []
    for block in CODE.finditer(text):
        for line in (block[1] or block[2]).replace("\\\n", " ").splitlines():
            words = shlex.split(line.strip().removeprefix("$ "), comments=True) if re.match(r"\s*(\$ )?kernrl ", line) else []
            if words and "..." not in words:  # an excerpt
                found.append(words[1 : words.index("|") if "|" in words else None])
    return found


def test_commands_are_found() -> None:
    text = "Say\n\n    kernrl doctor  # here\n\n```bash\nkernrl eval --model x \\\n  --samples 2 | head\n```\n"
    text += "\n```\n$ kernrl --help\n```\n"
    assert commands(text) == [["doctor"], ["eval", "--model", "x", "--samples", "2"], ["--help"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_one(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(page.read_text()):
        assert cli.run([*words, *([] if "--help" in words else ["--dry-run"])]) == 0, (words, capsys.readouterr().err)


@pytest.fixture
def workshop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages' examples name: a task, a candidate, and a run that judged candidates from disk."""
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the verifier's cache
    tasks = load_tasks("heldout", limit=2).tasks
    (tmp_path / "my_kernels").mkdir()
    for task in tasks:
        (tmp_path / "my_kernels" / f"{task.id}.py").write_text(task.solutions[0].triton_code)
    assert cli.run(["eval", "--from-run", "my_kernels", "--limit", "2", "--quiet"]) == 0
    return tmp_path


@pytest.mark.slow
def test_the_api_page_runs(workshop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL):
        exec(compile(block, "docs/api.md", "exec"), names)
    said = capsys.readouterr().out
    assert "correct modelled" in said
    assert re.search(r"0 wrong .+\n", said)
    assert "1 no_code" in said
    assert (workshop / "report.html").exists()
    assert (workshop / "again" / "results.json").exists()


NEED_A_MODEL = ("quickstart", "sft", "best-of-n", "reinforce", "reward-weighted", "eval")
"""Commands of the README that take minutes: `make quickstart` runs them."""


@pytest.mark.slow
def test_the_readmes_quick_commands_run(workshop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = load_tasks("heldout#2").tasks[0]
    (workshop / "my_task.py").write_text(task.source_at(task.input_set("small") or task.input_sets[0]))
    (workshop / "candidate.py").write_text(task.solutions[0].triton_code)
    pair = {"task": f"heldout::{task.id}", "candidate": task.solutions[1].triton_code}
    (workshop / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    make_reinforce_run(workshop / "checkpoints" / "rl", steps=2)
    (workshop / "checkpoints" / "eval-1").rename(workshop / "checkpoints" / "eval")
    ran = [words for words in commands((ROOT / "README.md").read_text()) if words[0] not in NEED_A_MODEL]
    for words in ran:
        code = cli.run([*words, "--quiet"])
        # a task file without small shapes needs a GPU, which is an answer too
        assert code == (1 if words[:2] == ["verify", "my_task.py"] else 0), (words, capsys.readouterr().err)
    assert len(ran) >= 6
    assert json.loads((workshop / "verdicts.jsonl").read_text())["status"] == "correct"
    assert (workshop / "report.html").exists()
