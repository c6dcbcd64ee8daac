"""Code and memory that were moved to large pages work as before."""

import os
import subprocess
import sys

import pytest

_SCRIPT = """
import pathlib
from kernrl.verifier.compile import compiler_child
from kernrl.verifier.sandbox import large_pages

def mapped():
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "libtriton" in line and line.split()[1] == "r-xp"]

def cubin():
    return compiler_child.compile_text(compiler_child._WARM_UP, "sm_90", {"num_warps": 4, "num_stages": 1})

before, was = cubin(), mapped()
large_pages.use_large_pages()
after, now = cubin(), mapped()
print(len(was), len(now), before == after and len(before[1]) > 1000)
"""


@pytest.mark.slow
def test_code_moved_to_large_pages_makes_the_same_machine_code():
    env = os.environ | {"TRITON_DISABLE_LINE_INFO": "1"}  # which name a temporary file
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, timeout=120, env=env, check=False)
    assert done.stdout.split() == ["1", "0", "True"], done.stderr
