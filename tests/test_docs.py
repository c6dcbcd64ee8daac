"""What the pages say is true now: paths exist, and docs/cli.md is what the commands say."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")] + sorted(
    (ROOT / "docs").glob("*.md")
)


def test_cli_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("make_cli_docs", ROOT / "scripts" / "make_cli_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "cli.md").read_text() == module.render(), "run `make docs`"


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
    targets = re.findall(r"\bmake (\w+)", (ROOT / "README.md").read_text())
    assert {"quickstart", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in makefile for target in targets)


def test_ci_runs_what_the_readme_says() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert ".ci/run" in (ROOT / ".github" / "workflows" / "ci.yml").read_text()
