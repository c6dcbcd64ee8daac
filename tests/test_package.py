"""What someone who installs the wheel gets."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import ROOT

import kernrl
from kernrl.tasks.loaders import load_tasks


@pytest.mark.slow
def test_wheel_holds_the_package_and_its_data(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(line, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "kernrl").rglob("*.py")}
    templates = {str(path.relative_to(ROOT)) for path in (ROOT / "kernrl").rglob("*.j2")}
    assert templates
    assert sources | templates | {"kernrl/py.typed"} <= names
    shipped = {f"kernrl/data/{path.name}" for path in (ROOT / "data").glob("*.jsonl")}
    assert shipped <= names
    assert not [name for name in names if name.split("/")[0] not in ("kernrl", f"kernrl-{kernrl.__version__}.dist-info")]
    text = zipfile.ZipFile(wheel).read(f"kernrl-{kernrl.__version__}.dist-info/entry_points.txt").decode()
    assert "kernrl = kernrl.__main__:main" in text


@pytest.mark.slow
def test_an_installed_sdist_works_away_from_the_checkout(tmp_path: Path) -> None:
    """The sdist is built, a wheel is built of it and installed, and its command finds its data."""
    build = [sys.executable, "-m", "hatchling", "build", "--target"]
    subprocess.run([*build, "sdist", "--directory", str(tmp_path)], cwd=ROOT, check=True, capture_output=True)
    [sdist] = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(sdist, tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    subprocess.run([*build, "wheel", "--directory", str(tmp_path)], cwd=unpacked, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*install, "--target", str(tmp_path / "site"), str(wheel)], check=True, capture_output=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}

    def says(*line: str) -> str:
        command = [sys.executable, *line]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout

    assert says("-c", "import kernrl; print(kernrl.__file__)").startswith(str(tmp_path / "site"))
    script = str(tmp_path / "site" / "bin" / "kernrl")  # what uvx runs
    assert says(script, "--version") == f"kernrl {kernrl.__version__}\n"
    assert "optimize" in says(script, "--help")
    assert load_tasks("heldout", limit=1).tasks[0].id in says(script, "tasks", "list", "heldout", "--limit", "1")


TRAINING_ALONE = ("accelerate", "datasets", "pandas", "peft", "pyarrow", "safetensors", "tokenizers", "transformers")
"""Packages that the verifier does without."""


@pytest.mark.slow
def test_judging_needs_nothing_of_training_and_no_file_of_the_working_folder(tmp_path: Path) -> None:
    """A folder of kernels may hold a random.py or a torch.py; the processes that judge import Python's and torch's own."""
    task = load_tasks("heldout#2").tasks[0]
    (tmp_path / "candidate.py").write_text(task.solutions[0].triton_code)
    (tmp_path / "task.py").write_text(task.pytorch_code)
    for name in ("json", "types", "random", "queue", "torch", "triton", "kernrl"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the {name}.py of this folder was imported')\n")
    script = f"""
import sys
sys.modules.update(dict.fromkeys({TRAINING_ALONE!r}))
from kernrl.__main__ import main
main()
"""
    # each in a process of its own: main() ends the process while a daemon thread is left
    for line in ("tasks check task.py", "verify task.py candidate.py --no-cache --device cpu --quiet"):
        command = [sys.executable, "-P", "-c", script, *line.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "of this folder" not in done.stdout + done.stderr
    assert done.stdout.startswith("correct ")
