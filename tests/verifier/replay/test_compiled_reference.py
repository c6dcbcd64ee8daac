"""A reference is compiled without being run, and run without being compiled again."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.runtime.benchmarking import benchmarker

from kernrl.verifier.replay import compiled_reference
from kernrl.verifier.replay.compiled_reference import CompiledReference


class Watched(nn.Module):
    """Two graphs, since Python looks at a number between them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + 1 if y.sum() > 0 else y - 1


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the compiler is asked, and what is run of its work."""
    events: list[str] = []

    def backend(graph: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        events.append("compile")

        def run(*arguments: Any) -> Any:
            events.append("run")
            return graph(*arguments)

        return run

    monkeypatch.setattr(compiled_reference, "inductor_backend", lambda mode: backend)
    torch.compiler.reset()
    return events


@pytest.mark.slow
def test_compiling_runs_nothing_and_running_compiles_nothing_again(log: list[str]) -> None:
    reference, x = CompiledReference(Watched(), "compile"), torch.tensor([1.0, 2.0])
    with torch.no_grad():
        reference.compile([x])
        assert log == ["compile"], "the second graph depends on what the first one gives"
        assert reference(x).tolist() == [3.0, 5.0]
        assert log.count("compile") == 2
        before = log.count("run")
        assert reference(-x).tolist() == [-3.0, -5.0]
    assert log.count("run") > before


@pytest.mark.slow
def test_a_choice_by_measuring_is_left_to_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when Inductor tries whether padding a product's operands pays: other lanes may be timing."""
    measured: list[str] = []
    monkeypatch.setattr(type(benchmarker), "benchmark_gpu", lambda *_, **__: measured.append("measured") or 1.0)

    def backend(graph: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        benchmarker.benchmark_gpu(lambda: None)
        return graph

    monkeypatch.setattr(compiled_reference, "inductor_backend", lambda mode: backend)
    torch.compiler.reset()
    reference, x = CompiledReference(Watched(), "compile"), torch.tensor([1.0])
    with torch.no_grad():
        reference.compile([x])
        assert measured == []
        assert reference(x).tolist() == [3.0]
    assert set(measured) == {"measured"}


def test_inductor_is_what_torch_compile_would_use() -> None:
    """A mode's settings are those that `torch.compile(mode=…)` passes on."""
    asked = compiled_reference.inductor_backend(compiled_reference.MODES["max-autotune"])
    assert asked == torch._TorchCompileInductorWrapper("max-autotune-no-cudagraphs", None, False)
    assert compiled_reference.inductor_backend(None) == torch._TorchCompileInductorWrapper("default", None, False)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["compiled", "run", "both"])
def test_a_reference_that_is_dropped_leaves_no_parameter_behind(log: list[str], step: str) -> None:
    """Dynamo's cache outlives it, as does a long run: a gigabyte of weights a task would fill any GPU."""

    def used() -> weakref.ref[torch.Tensor]:
        module, x = nn.Linear(4, 4), torch.ones(2, 4)
        reference = CompiledReference(module, "compile")
        with torch.no_grad():
            if step != "run":
                reference.compile([x])
            if step != "compiled":
                reference(x)
        return weakref.ref(module.weight)

    weight = used()
    gc.collect()
    assert weight() is None


@pytest.mark.slow
def test_warming_up_leaves_nothing_compiled(log: list[str]) -> None:
    config: Any = torch._inductor.config  # pyright: ignore[reportAttributeAccessIssue]
    config.compile_threads = 7
    compiled_reference.warm_up("cpu")
    assert log == ["compile"]
    assert config.compile_threads == 1, "it would start as many processes"
    with torch.no_grad():
        assert CompiledReference(nn.ReLU(), "compile")(torch.ones(32)).sum() == 32
    assert log == ["compile", "compile", "run"]


IMPORTS = """
import os, sys
from kernrl.verifier.replay.compiled_reference import import_compiler
before = len(os.listdir("/proc/self/task"))
import_compiler()
print(all(f"torch._inductor.{name}" in sys.modules for name in ("compile_fx", "fx_passes.fuse_attention", "fx_passes.pad_mm")))
os.environ["TORCHINDUCTOR_CACHE_DIR"] = sys.argv[1]
from torch._inductor.runtime.cache_dir_utils import cache_dir
print(cache_dir())
print(len(os.listdir("/proc/self/task")) - before, *open("/proc/self/task/%d/children" % os.getpid()))
"""


@pytest.mark.slow
def test_a_process_that_has_imported_the_compiler_still_chooses_its_cache_folder(tmp_path: Path) -> None:
    """A worker has it from its client, after it was forked: this starts no thread, and no process that compiles."""
    folder = str(tmp_path / "inductor")
    done = subprocess.run([sys.executable, "-c", IMPORTS, folder], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["True", folder, "0"]
