"""What someone who installs the wheel gets."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from support import ROOT

import kernrl


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
    assert "kernrl = kernrl.cli:main" in text
